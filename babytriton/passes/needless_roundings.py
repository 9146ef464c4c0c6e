"""Roundings to half precision that leave numbers as they are, since these have no more digits.

A function of halves is computed in float32 and rounded. What takes a sign away, cuts off a fraction
or chooses one of two numbers gives digits that halves have, and what reads it may do so unrounded.
"""

from __future__ import annotations

import math
import struct

from tvm import IRModule, ir, tirx

from babytriton.passes.intrinsics import HALVES, dtype_of, function_name, rewrite

# Of a number that halves have, these give one that halves have.
_FUNCTIONS = frozenset(("fabs", "floor", "ceil", "trunc", "round", "nearbyint"))

# Integers that all halves have.
_INTEGERS = ("bool", "int8", "uint8")


def without_needless_roundings(mod: IRModule) -> IRModule:
    """Kernels that widen numbers again without rounding them before, where that changes nothing."""
    return rewrite(mod, tirx.Cast, _unrounded)


def _unrounded(cast: tirx.Cast) -> ir.Expr:
    rounded = cast.value
    if not isinstance(rounded, tirx.Cast) or dtype_of(rounded) not in HALVES:
        return cast
    wide = rounded.value
    if dtype_of(wide) != "float32" or not _has_half(wide, dtype_of(rounded)):
        return cast
    return wide if dtype_of(cast) == "float32" else tirx.Cast(dtype_of(cast), wide)


def _has_half(expr: ir.Expr, half: str) -> bool:
    """Whether a dtype of half precision has each number that an expression may be."""
    if isinstance(expr, tirx.Cast):
        return dtype_of(expr.value) in (half, *_INTEGERS)
    if isinstance(expr, tirx.FloatImm):
        return _is_half(float(expr.value), half)
    if isinstance(expr, tirx.Select):
        return _has_half(expr.true_value, half) and _has_half(expr.false_value, half)
    if isinstance(expr, (tirx.Min, tirx.Max)):
        return _has_half(expr.a, half) and _has_half(expr.b, half)
    if isinstance(expr, tirx.Mul):  # A change of sign is one.
        is_sign = isinstance(expr.b, tirx.FloatImm) and float(expr.b.value) == -1
        return is_sign and _has_half(expr.a, half)
    if isinstance(expr, ir.Call) and function_name(expr) in _FUNCTIONS:
        return _has_half(expr.args[0], half)
    return False


def _is_half(value: float, half: str) -> bool:
    if not math.isfinite(value):
        return True
    if half == "bfloat16":
        return struct.pack("<f", value)[:2] == b"\0\0"
    try:
        (found,) = struct.unpack("<e", struct.pack("<e", value))
    except OverflowError:
        return False
    return bool(found == value)
