"""Math functions and constants of CUDA kernels."""

from __future__ import annotations

import math
import struct

from tvm import IRModule, ir, tirx

from babytriton.ops import cuda_code
from babytriton.passes.intrinsics import (
    HALVES,
    dtype_of,
    function_name,
    in_float32,
    is_half_function,
    rewrite,
    rewrite_calls,
)
from babytriton.passes.statements import is_constant

_FAST_EXP = """\
// e to the power of x for results of 16 bits; 0 where float32 would have less than 24 bits.
__device__ __forceinline__ float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}"""

_FAST_RECIPROCAL = """\
// 1 / x for results of 16 bits; 0 where x is above 2 to the power of 126.
__device__ __forceinline__ float fast_reciprocal(float x) {
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(x));
  return quotient;
}"""

_ONE_PLUS_ERF = """\
// 1 + erf(x) for results of 16 bits: Abramowitz and Stegun, 7.1.26, wrong by 2.1e-7 at most.
__device__ __forceinline__ float one_plus_erf(float x) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(1.0f + 0.3275911f * fabsf(x)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * x * -1.44269504f));
  float sum = ((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t;
  sum = ((sum - 0.284496736f) * t + 0.254829592f) * t * power;
  return x < 0.0f ? sum : 2.0f - sum;
}"""


def precise_math(mod: IRModule) -> IRModule:
    """Kernels whose math is as precise as torch's: 16-bit float functions run in float32.

    float32 and float64 need nothing: TVM names the precise functions (`expf`, `powf`) unless
    its "tirx.enable_fast_math" is set. What makes them imprecise is the CUDA compiler's
    `--use_fast_math`, which TVM's own compile callbacks pass and ours must not.
    """
    return rewrite(rewrite(rewrite_calls(mod, by_name), tirx.FloatImm, exact), tirx.Cast, rounded)


def rounded(cast: tirx.Cast) -> ir.Expr:
    """A number of 16 bits, of exponentials that have enough digits for it.

    Those of the hardware are wrong by 2 + 1.2 |x| roundings of float32 at most (CUDA C++
    Programming Guide, "Mathematical Functions"), which is a hundredth of a rounding to 16 bits.
    They take half the instructions.
    """
    half = dtype_of(cast)
    if half not in HALVES or dtype_of(cast.value) != "float32":
        return cast
    return tirx.Cast(half, _fast(cast.value))


def _fast(expr: ir.Expr) -> ir.Expr:
    """An expression of which so many digits are needed as 16 bits have, and some more.

    That holds for what is in it as far as nothing is subtracted: an exponential has no sign.
    """
    if isinstance(expr, tirx.Mul):
        return tirx.Mul(_fast(expr.a), _fast(expr.b))
    if isinstance(expr, tirx.Div):
        return _quotient(_fast(expr.a), expr.b)
    if _is_exp(expr):
        return _exp(expr)
    if isinstance(expr, tirx.Add) and is_constant(expr.a, 1.0):
        if _is_call(expr.b, "erf"):
            return _own("one_plus_erf", _ONE_PLUS_ERF, *expr.b.args)
        if _is_call(expr.b, "tanh"):  # 1 + tanh(x) = 2 / (1 + exp(-2x))
            return _quotient(_number(2.0), _number(1.0) + tirx.exp(_number(-2.0) * expr.b.args[0]))
    if _is_call(expr, "sigmoid"):
        return _quotient(_number(1.0), _number(1.0) + tirx.exp(-expr.args[0]))
    return expr


def _number(value: float) -> tirx.FloatImm:
    return tirx.FloatImm("float32", value)


def _quotient(value: ir.Expr, divisor: ir.Expr) -> ir.Expr:
    """A value divided by one and an exponential, as in a sigmoid, faster than by others.

    The hardware's reciprocal is 0 for numbers above 2**126, so it gets a quarter of one. What an
    exponential is below the least number of 24 bits does not show beside the one.
    """
    parts = [divisor.a, divisor.b] if isinstance(divisor, tirx.Add) else []
    exps = list(filter(_is_exp, parts))
    if len(exps) != 1 or not any(is_constant(x, 1.0) for x in parts):
        return tirx.Div(value, divisor)
    quarter = _number(0.25)
    share = quarter + quarter * _own("fast_exp", _FAST_EXP, *exps[0].args)
    value = quarter if is_constant(value, 1.0) else quarter * value
    return value * _own("fast_reciprocal", _FAST_RECIPROCAL, share)


def _own(name: str, source: str, *args: ir.Expr) -> ir.Expr:
    """A call of a function of ours."""
    return tirx.call_pure_extern("float32", cuda_code.defined(source, name), *args)


def _exp(call: ir.Call) -> ir.Expr:
    return tirx.call_pure_extern("float32", "__expf", *call.args)


def _is_exp(expr: ir.Expr) -> bool:
    return _is_call(expr, "exp")


def _is_call(expr: ir.Expr, name: str) -> bool:
    return isinstance(expr, ir.Call) and function_name(expr) == name


def exact(constant: tirx.FloatImm) -> ir.Expr:
    """A constant in other words, where TVM would print another number or none.

    TVM prints float64 with 15 digits after the point, so that 1e-20 becomes 0, and infinities
    and NaN of 16-bit floats as names that CUDA does not have.
    """
    value, dtype = float(constant.value), dtype_of(constant)
    if dtype in HALVES and not math.isfinite(value):
        return tirx.Cast(dtype, tirx.FloatImm("float32", value))
    if dtype != "float64" or float(f"{value:.15f}") == value or value != value:
        return constant
    [bits] = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.IntImm("int64", bits))


BITS = {
    ("float32", "int32"): "__float_as_int",
    ("int32", "float32"): "__int_as_float",
    ("float64", "int64"): "__double_as_longlong",
    ("int64", "float64"): "__longlong_as_double",
}
"""CUDA's own functions for the bits of a number, from one dtype to another."""


def by_name(call: ir.Call) -> ir.Expr:
    """A function that CUDA has, in place of one that it lacks or that TVM prints wrongly."""
    if is_half_function(call):
        return in_float32(call)
    if function_name(call) == "reinterpret":
        # TVM prints *(int*)(&(x)), which no compiler takes where x is a constant.
        function = BITS.get((dtype_of(call.args[0]), dtype_of(call)))
        if function is not None:
            return tirx.call_pure_extern(dtype_of(call), function, *call.args)
    return call
