"""Expressions of sizes and of steps' numbers -> Python's of the same values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx

from babytriton.passes.intrinsics import dtype_of

_OPERATORS: dict[type, str] = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "and",
    tirx.Or: "or",
}
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)
_FUNCTIONS: dict[type, str] = {tirx.Min: "min", tirx.Max: "max"}


_WIDE = ("int64", "bool")
"""The dtypes of what Python computes as well: narrower integers wrap around."""


def as_python(expr: Any, names: Mapping[Any, str]) -> str | None:
    """A Python expression of an integer or a condition; None where it has something else in it.

    Args:
        expr: of integers of 64 bits.
        names: what the variables in it are called.
    """
    if isinstance(expr, tirx.IntImm):
        return f"({int(expr)})" if int(expr) < 0 else str(int(expr))
    if dtype_of(expr) not in _WIDE:
        return None
    if isinstance(expr, ir.Var):
        return names.get(expr)
    if isinstance(expr, (tirx.Cast, tirx.Not)):
        inner = as_python(expr.value if isinstance(expr, tirx.Cast) else expr.a, names)
        if inner is None:
            return None
        if isinstance(expr, tirx.Not):
            return f"(not {inner})"
        return f"({inner} != 0)" if dtype_of(expr) == "bool" else inner
    operator, function = _OPERATORS.get(type(expr)), _FUNCTIONS.get(type(expr))
    if operator is None and function is None:
        return None
    if dtype_of(expr) == "bool" and type(expr) in _ARITHMETIC:
        return None  # True and True would be 2.
    left, right = as_python(expr.a, names), as_python(expr.b, names)
    if left is None or right is None:
        return None
    return f"({left} {operator} {right})" if operator else f"{function}({left}, {right})"
