"""Every message beside the code that causes it: ``case.py`` fails with the text of ``case.txt``.

A case defines ``run()``, which raises. Run with ``--update-golden`` to rewrite the texts.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path

import pytest

import babytriton as bt

HERE = Path(__file__).parent
CASES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__")))

RAISED = (
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    ArithmeticError,
    AssertionError,
    ImportError,
    Warning,
)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_message(case: Path, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    name = f"tests.errors.{case.stem}"
    spec = importlib.util.spec_from_file_location(name, case)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    linecache.checkcache()
    spec.loader.exec_module(module)
    with pytest.raises((bt.CompileError, *RAISED)) as caught:
        module.run()
    kind = "CompileError" if isinstance(caught.value, bt.CompileError) else caught.type.__name__
    text = f"{kind}\n{caught.value}\n".replace(f"{HERE}/", "")
    golden = case.with_suffix(".txt")
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text()
