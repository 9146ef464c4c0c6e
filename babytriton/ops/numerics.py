"""torch's arithmetic where TVM's differs, as scalar expressions for tensor expressions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tvm import tirx

from babytriton.types import dtype_of


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that torch computes in: float32 for the half-precision floats."""
    return torch.float32 if dtype_of(dtype).is_half else dtype


def order_key(x: Any, *, nan: str = "max", signed_zeros: bool = True) -> Any:
    """An integer that orders as ``x`` does, for reductions by ``te.max`` and ``te.min``.

    TVM's own reductions of floats drop NaN and start from the largest finite float. Those of
    integers are exact, vectorize, and are known to every schedule.

    Args:
        x: a number of any dtype.
        nan: ``"max"`` if NaN is to win a maximum, ``"min"`` if it is to win a minimum.
        signed_zeros: whether -0.0 comes before 0.0; if not they are the same key.
    """
    dtype = str(x.ty.dtype)
    if dtype == "int64":
        return x
    if not dtype.startswith(("float", "bfloat")):
        return x.astype("int32")
    x = x if dtype == "float64" else x.astype("float32")
    integer = "int64" if dtype == "float64" else "int32"
    key = _fold_negative(tirx.reinterpret(integer, x), integer)
    if not signed_zeros:
        key = tirx.Select(x == tirx.const(0.0, x.ty.dtype), tirx.const(0, integer), key)
    # Keys of the quiet NaN of either sign: TVM's cast to bfloat16 takes other NaNs for numbers.
    quiet = 0x7FF8 << 48 if dtype == "float64" else 0x7FC0 << 16
    wins = tirx.const(quiet if nan == "max" else -quiet - 1, integer)
    return tirx.Select(isnan(x), wins, key)


def key_type(dtype: str) -> str:
    """The dtype of the numbers that are told apart by their :func:`order_key`."""
    if dtype.startswith(("float", "bfloat")):
        return "float64" if dtype == "float64" else "float32"
    return "int64" if dtype == "int64" else "int32"


def from_order_key(key: Any, dtype: str) -> Any:
    """The number whose :func:`order_key` it is."""
    if not dtype.startswith(("float", "bfloat")):
        return key.astype(dtype)
    integer, wide = ("int64", "float64") if dtype == "float64" else ("int32", "float32")
    return tirx.reinterpret(wide, _fold_negative(key, integer)).astype(dtype)


def _fold_negative(bits: Any, integer: str) -> Any:
    """Reverse the order of the negative numbers, which floats count from zero downwards."""
    width = 64 if integer == "int64" else 32
    mask = tirx.const(2 ** (width - 1) - 1, integer)
    return bits ^ ((bits >> tirx.const(width - 1, integer)) & mask)


def rounded_to_bfloat16(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The nearest float32 that is a bfloat16, of which the last bit is 0 where two are as near."""
    bits = tirx.reinterpret("int32", x)
    last = (bits >> tirx.const(16, "int32")) & tirx.const(1, "int32")
    above = (bits + tirx.const(0x7FFF, "int32") + last) & tirx.const(-0x10000, "int32")
    is_nan = (bits & tirx.const(0x7FFFFFFF, "int32")) > tirx.const(0x7F800000, "int32")
    # TVM's cast to bfloat16 takes NaNs other than the quiet ones for numbers.
    quiet = tirx.const(0x7FC0 << 16, "int32")
    return tirx.reinterpret("float32", tirx.Select(is_nan, quiet, above))


def is_float(x: tirx.PrimExpr) -> bool:
    """Whether an element is a floating point number."""
    return "float" in str(x.ty.dtype)


def isnan(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """Whether an element is NaN; TVM takes ``x != x`` to be false whatever ``x`` is."""
    return tirx.isnan(x if str(x.ty.dtype) in ("float32", "float64") else x.astype("float32"))


def finite(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """A float, but 0 for infinities and NaN."""
    return tirx.Select(tirx.abs(x) < like(x, math.inf), x, like(x, 0))


def equal(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """``a == b``, false if either is NaN; TVM's own is true where both are the same expression."""
    return tirx.And(a <= b, a >= b) if is_float(a) else tirx.EQ(a, b)


def not_equal(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """``a != b``, true if either is NaN; TVM's own is false then on the CPU."""
    if not is_float(a):
        return tirx.NE(a, b)
    return tirx.Select(equal(a, b), tirx.const(False, "bool"), tirx.const(True, "bool"))


def maximum(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """The larger, NaN if either is; ``tirx.max`` drops a NaN in its first operand."""
    if str(a.ty.dtype) == "bool":
        return tirx.Or(a, b)
    if not is_float(a):
        return tirx.max(a, b)
    if _is_number(b):
        return tirx.Select(a < b, b, a)
    return tirx.Select(tirx.Or(a > b, isnan(a)), a, b)


def minimum(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """The smaller, NaN if either is."""
    if str(a.ty.dtype) == "bool":
        return tirx.And(a, b)
    if not is_float(a):
        return tirx.min(a, b)
    if _is_number(b):
        return tirx.Select(a > b, b, a)
    return tirx.Select(tirx.Or(a < b, isnan(a)), a, b)


def _is_number(x: tirx.PrimExpr) -> bool:
    """Whether an element is a constant, other than NaN: a comparison with it tells the other's."""
    return isinstance(x, tirx.FloatImm) and not math.isnan(float(x.value))


def like(x: tirx.PrimExpr, value: Any) -> tirx.PrimExpr:
    """A Python number as an element of the dtype of ``x``."""
    return tirx.const(value, str(x.ty.dtype))


def remainder(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """``a % b`` with the sign of ``b``, as in Python."""
    if not is_float(a):
        return tirx.floormod(a, b)
    rest = tirx.truncmod(a, b)
    return tirx.Select(_opposite(rest, b), rest + b, rest)


def floor_divide(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """``a // b`` as torch computes it: from the remainder, so that no quotient rounds up."""
    if not is_float(a):
        return tirx.floordiv(a, b)
    zero, one = like(a, 0), like(a, 1)
    rest = tirx.truncmod(a, b)
    quotient = (a - rest) / b
    quotient = tirx.Select(_opposite(rest, b), quotient - one, quotient)
    whole = tirx.floor(quotient)
    whole = tirx.Select(quotient - whole > like(a, 0.5), whole + one, whole)
    whole = tirx.Select(tirx.EQ(quotient, zero), tirx.copysign(zero, a / b), whole)
    return tirx.Select(tirx.EQ(b, zero), a / b, whole)


def _opposite(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """Whether both are nonzero and of opposite signs."""
    zero = like(a, 0)
    return tirx.Or(tirx.And(a < zero, b > zero), tirx.And(a > zero, b < zero))


def expm1(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """``exp(x) - 1`` without cancellation."""
    return libm("expm1", x)


def libm(name: str, *args: tirx.PrimExpr) -> tirx.PrimExpr:
    """A function of the C library, which CUDA has under the same name: ``erfc`` or ``erfcf``."""
    dtype = str(args[0].ty.dtype)
    suffix = "f" if dtype == "float32" else ""
    return tirx.call_pure_extern(dtype, name + suffix, *args)


def power(x: tirx.PrimExpr, exponent: tirx.PrimExpr) -> tirx.PrimExpr:
    """``x ** exponent``, where TVM sees no constant exponent: it warns of those above 2."""
    hidden = tirx.Select(isnan(x), like(x, 1), exponent)
    return tirx.call_intrin(str(x.ty.dtype), "tirx.pow", x, hidden)


def is_true(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """Whether an element is not zero, which NaN is not either."""
    # TVM compares bools as floats, which LLVM refuses.
    return x if str(x.ty.dtype) == "bool" else not_equal(x, like(x, 0))


def hidden(constant: tirx.PrimExpr) -> tirx.PrimExpr:
    """A constant, or any element, that TVM's simplifier does not look into."""
    integer = "int64" if str(constant.ty.dtype) == "float64" else "int32"
    if not is_float(constant):
        return constant
    return tirx.reinterpret(constant.ty.dtype, tirx.reinterpret(integer, constant))
