"""The house rules that a machine can hold: layers, samples for rows, goldens for messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from babytriton import errors
from babytriton.diagnostics import Diagnostic
from babytriton.errors import kernels as kernel_errors
from babytriton.ops import ROWS

PACKAGE = Path(errors.__file__).parent.parent
TESTS = Path(__file__).parent

# A module may import those of its own layer where `ALONE` does not forbid it, and those below.
LAYERS = (
    {"diagnostics", "types", "config", "containers", "excepthook", "dumping", "processors"},
    {"errors", "ops", "targets"},
    {"tensor", "device", "plan", "arrays", "wrappers", "tracing"},
    {"frontend", "passes", "runtime"},
    {"halves", "memory_formats", "arguments"},
    {"recording"},
    {"running", "building"},
    {"shortcuts"},
    {"sources"},
    {"stages"},
    {"specializations", "buffers", "dividing"},
    {"kernel_stages"},
    {"jit"},
    {"kernel", "cuda_code"},
    {"integrations"},
    {"testing"},
    {"__init__", "__main__"},
)
ALONE = {"frontend", "passes", "runtime"}
TVM = (
    "ops",
    "processors",
    "targets",
    "passes",
    "runtime",
    "halves",
    "memory_formats",
    "dividing",
    "running",
    "building",
    "stages",
    "buffers",
    "kernel_stages",
    "__init__",
)
TVM_IN_FRONTEND = {"kernel", "lowering"}


def _modules() -> list[tuple[str, Path]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(".".join(path.relative_to(PACKAGE).with_suffix("").parts), path) for path in paths]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Relative imports stay within one folder, hence within one layer.
            if node.level == 0 and node.module == "babytriton":
                yield from (f"babytriton.{alias.name}" for alias in node.names)
            elif node.level == 0 and node.module:
                yield node.module


def _layer(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


@pytest.mark.parametrize(("name", "path"), _modules())
def test_imports_point_down(name: str, path: Path) -> None:
    part = name.partition(".")[0]
    for imported in _imports(path):
        if not imported.startswith("babytriton."):
            continue
        other = imported.split(".")[1]
        if other == part:
            continue
        assert _layer(other) <= _layer(part), f"{name} imports {imported}"
        assert not {part, other} <= ALONE, f"{name} imports {imported}"


@pytest.mark.parametrize(("name", "path"), _modules())
def test_tvm_is_imported_where_ir_is_made(name: str, path: Path) -> None:
    part, _, rest = name.partition(".")
    allowed = part in TVM or (part == "frontend" and rest.partition(".")[0] in TVM_IN_FRONTEND)
    for imported in _imports(path):
        if imported.partition(".")[0] in ("tvm", "tvm_ffi"):
            assert allowed, f"{name} imports {imported}"


def test_every_row_has_a_sample() -> None:
    from tests.conformance.samples import SAMPLES

    missing = {row.name for row in ROWS} - {sample.op for sample in SAMPLES}
    assert not missing


def test_every_sample_has_a_row() -> None:
    from tests.conformance.samples import SAMPLES

    assert not {sample.op for sample in SAMPLES} - {row.name for row in ROWS}


def test_row_names_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(set(names))


def _diagnostics() -> list[type[Diagnostic]]:
    found = {**vars(errors), **vars(kernel_errors)}.values()
    classes = [x for x in found if isinstance(x, type)]
    return [x for x in classes if issubclass(x, Diagnostic) and "code" in vars(x)]


def test_codes_are_unique() -> None:
    codes = [x.code for x in _diagnostics()]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("diagnostic", _diagnostics(), ids=lambda x: x.__name__)
def test_every_message_has_a_golden(diagnostic: type[Diagnostic]) -> None:
    goldens = [path.read_text() for path in (TESTS / "errors").glob("*.txt")]
    assert any(f"error[{diagnostic.code}]" in text for text in goldens), diagnostic.code


def test_no_file_is_a_junk_room() -> None:
    long = {name: len(path.read_text().splitlines()) for name, path in _modules()}
    assert not {name: n for name, n in long.items() if n > 500}
