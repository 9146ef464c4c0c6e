"""The table of the language names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parent.parent / "docs" / "language.md"
ROWS = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
LINK = re.compile(r"\[(\w+)\]\(([\w./]+)\)")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("| | status")])
def test_row_is_shown_by_tests(row: str) -> None:
    *_, tests, _ = row.split("|")
    links = LINK.findall(tests)
    assert links, row
    for name, target in links:
        path = (DOCUMENT.parent / target).resolve()
        assert path.exists(), target
        if path.parent.name == "errors":
            assert path.stem == name
            assert path.with_suffix(".txt").exists(), "a refusal shows its message"
        else:
            assert name in functions(path), f"{target} has no {name}"
