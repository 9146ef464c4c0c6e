"""A Python function -> its syntax tree, with spans in the file it stands in."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from babytriton.diagnostics import CompileError, Span
from babytriton.errors import NoSource
from babytriton.frontend.callee import function_of

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Source:
    """Where a function's code stands.

    Attributes:
        path: of the file, or the name of a notebook cell as ``linecache`` knows it.
        node: the function's definition in the tree of the whole file, so that line and column
            numbers are the file's.
        text: of the whole file.
    """

    path: str
    node: FunctionNode
    text: str

    @staticmethod
    def remember(fn: Callable[..., Any]) -> None:
        """Read a function's file now: by the time it is compiled, it may have been edited."""
        function = function_of(fn)
        linecache.getlines(function.__code__.co_filename, function.__globals__)

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> Source:
        """The source of a Python function, lambda or method, or of what a call of an object runs.

        Raises:
            CompileError: its text cannot be found.
        """
        fn = function_of(fn)
        code = fn.__code__
        lines = linecache.getlines(code.co_filename, fn.__globals__)
        text = "".join(lines)
        found = _functions(text).get((code.co_firstlineno, code.co_name), [])
        columns = hasattr(code, "co_positions")  # Python 3.10 does not record them
        if not found or (len(found) > 1 and not columns):
            raise CompileError(NoSource(None, fn.__qualname__))
        node = found[0] if len(found) == 1 else max(found, key=lambda n: _overlap(n, code))
        return cls(code.co_filename, node, text)

    def span(self, node: ast.AST) -> Span:
        """Where a node of the tree stands."""
        line = getattr(node, "lineno", self.node.lineno)
        column = getattr(node, "col_offset", self.node.col_offset)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        return Span(
            self.path,
            line,
            self._characters(line, column),
            end_line,
            self._characters(end_line, end_column),
        )

    def segment(self, node: ast.AST) -> str:
        """The text of a node on one line, shortened if it is long."""
        text = " ".join((ast.get_source_segment(self.text, node) or "").split())
        return text if len(text) <= 60 else text[:57] + "..."

    def _characters(self, line: int, byte_column: int) -> int:
        # Python counts columns in bytes of UTF-8, editors in characters.
        text = linecache.getline(self.path, line)
        return len(text.encode()[:byte_column].decode(errors="ignore"))


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[int, str], list[FunctionNode]]:
    """The functions of a file, by their first line and name."""
    found: dict[tuple[int, str], list[FunctionNode]] = {}
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found.setdefault((_first_line(node), _name(node)), []).append(node)
    return found


def _first_line(node: FunctionNode) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _name(node: FunctionNode) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _overlap(node: FunctionNode, code: types.CodeType) -> float:
    """How well a node's extent fits the instructions: tells lambdas on one line apart."""
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    inside = outside = 0
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        # What begins where a function does makes the function.
        if start < (line, column) and (end_line, end_column) <= end:
            inside += 1
        else:
            outside += 1
    extent = sum(1 for _ in ast.walk(node))
    # Of two nested lambdas both may hold every instruction: the smaller one is meant.
    return inside - 2 * outside - extent * 1e-6
