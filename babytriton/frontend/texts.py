"""Strings, prints and assertions: what shows the numbers of a program while it runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from babytriton import errors
from babytriton.frontend import effects
from babytriton.frontend.control_flow import ControlFlow
from babytriton.ops.value import Scalar, Text, values_in

_CONVERSIONS: dict[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}


class Texts(ControlFlow):
    """Formatted strings, and the statement that reports what does not hold."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> str | Text:
        parts = [self.visit(part) for part in node.values]
        return Text(_joined, parts) if values_in(parts) else _joined(parts)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> str | Text:
        value = self.visit(node.value)
        spec = "" if node.format_spec is None else self.visit(node.format_spec)
        convert = _CONVERSIONS.get(node.conversion)
        if values_in((value, spec)):
            return Text(_formatted, value, convert, spec)
        return str(self.python(node, _formatted, value, convert, spec))

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.condition(node.test, self.visit(node.test))
        if isinstance(test, Scalar):
            why = None if node.msg is None else self.visit(node.msg)
            effects.check(self, node, test, why)
        elif not test:
            why = "" if node.msg is None else str(self.visit(node.msg))
            self.fail(errors.PythonError(self.span(node), "AssertionError", why or "it is false"))


def _joined(parts: list[Any]) -> str:
    return "".join(map(str, parts))


def _formatted(value: Any, convert: Callable[[Any], str] | None, spec: str) -> str:
    return format(value if convert is None else convert(value), spec)
