"""Math functions of CPU kernels, where TVM's own are wrong or missing."""

from __future__ import annotations

import math

from tvm import IRModule, ir, tirx

from babytriton.passes.cpu.formulas import FORMULAS
from babytriton.passes.cpu.formulas.steps import ROUND
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

# Taken from the C library: TVM computes tanh and atanh by formulas that lose all digits near zero
# (tanh(1e-10) is 0), and has no sinh and cosh for vectors.
LIBRARY = ("tanh", "atanh", "sinh", "cosh")


# Functions that LLVM takes back out of float32 if they stand between casts of float16, which it has
# no vectors for.
_WHOLE = ("floor", "ceil", "trunc", "nearbyint")


def precise_math(mod: IRModule) -> IRModule:
    """Kernels whose math is as precise as torch's; 16-bit float functions run in float32."""
    mod = rewrite(rewrite(mod, tirx.Mod, _remainder), tirx.Mul, _distribution)
    mod = rewrite_calls(mod, precise)
    return rewrite(mod, tirx.Cast, _of_float16)


def _remainder(node: tirx.Mod) -> ir.Expr:
    """A remainder of floats as a function, which has a formula; that of halves is exact in it."""
    dtype = dtype_of(node)
    if dtype not in ("float32", *HALVES):
        return node
    wide = [x.astype("float32") for x in (node.a, node.b)]
    return tirx.call_intrin("float32", "tirx.fmod", *wide).astype(dtype)


def _distribution(node: tirx.Mul) -> ir.Expr:
    """Half of 1 + erf(x / sqrt(2)), of float32, as the one function it is: of a name of CUDA's.

    `vector_math.py` has a formula for it, and the sum where that cannot be.
    """
    for half, whole in ((node.a, node.b), (node.b, node.a)):
        if not is_constant(half, 0.5) or not isinstance(whole, tirx.Add):
            continue
        for one, erf in ((whole.a, whole.b), (whole.b, whole.a)):
            is_erf = isinstance(erf, ir.Call) and function_name(erf) == "erf"
            if not is_constant(one, 1.0) or not is_erf or dtype_of(erf) != "float32":
                continue
            (scaled,) = erf.args
            if isinstance(scaled, tirx.Mul) and _is_root_of_half(scaled.b):
                return tirx.call_pure_extern("float32", "normcdff", scaled.a)
    return node


def _is_root_of_half(expr: ir.Expr) -> bool:
    """Whether it is that number, in whatever precision."""
    root = math.sqrt(0.5)
    return isinstance(expr, tirx.FloatImm) and math.isclose(expr.value, root, rel_tol=2**-24)


def _of_float16(cast: tirx.Cast) -> ir.Expr:
    """A cast, where what LLVM makes of it has no vectors, or shorter ones than it could have."""
    value, dtype = cast.value, dtype_of(cast)
    if dtype == "float16" and isinstance(value, ir.Call) and function_name(value) in _WHOLE:
        number = value.args[0]
        if isinstance(number, tirx.Cast) and dtype_of(number.value) == "float16":
            return tirx.Cast(dtype, _whole(function_name(value), number))
    is_short = dtype in ("int8", "uint8", "int16") and isinstance(value, tirx.Cast)
    if is_short and dtype_of(value) == "int64" and dtype_of(value.value) == "float16":
        return tirx.Cast(dtype, tirx.Cast("int32", value.value))
    return cast


def _whole(name: str, number: ir.Expr) -> ir.Expr:
    """The whole number that a function makes of a float16 in float32, with its sign, also of 0."""
    x = tirx.Var("number", "float32")
    value = tirx.abs(x) if name == "trunc" else x
    limit = tirx.const(ROUND, "float32")
    zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")
    near = value + limit - limit
    if name in ("floor", "trunc"):
        found = near - tirx.Select(near > value, one, zero)
    elif name == "ceil":
        found = near + tirx.Select(near < value, one, zero)
    else:
        found = near
    whole = tirx.call_intrin("float32", "tirx.copysign", found, x)
    return tirx.Let(x, number, whole)


def precise(call: ir.Call) -> ir.Expr:
    if is_half_function(call):
        wide = in_float32(call)
        return tirx.Cast(dtype_of(call), precise(wide.value))
    name, dtype = function_name(call), dtype_of(call)
    if dtype == "float32" and name in FORMULAS:
        return call  # becomes its formula once loops are lowered
    if name == "fmod":  # Missing, while truncmod is the same function, and there.
        return tirx.truncmod(*call.args)
    if name in LIBRARY and dtype in ("float32", "float64"):
        suffix = "f" if dtype == "float32" else ""
        return tirx.call_pure_extern(dtype, name + suffix, *call.args)
    return call
