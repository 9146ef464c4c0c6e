"""Math functions of CPU kernels, where TVM's own are wrong or missing."""

from __future__ import annotations

from tvm import IRModule, ir, tirx

from babytriton.passes.cpu.formulas import FORMULAS
from babytriton.passes.intrinsics import (
    HALVES,
    dtype_of,
    function_name,
    in_float32,
    is_half_function,
    rewrite,
    rewrite_calls,
)

# Taken from the C library: TVM computes tanh and atanh by formulas that lose all digits near zero
# (tanh(1e-10) is 0), and has no sinh and cosh for vectors.
LIBRARY = ("tanh", "atanh", "sinh", "cosh")


def precise_math(mod: IRModule) -> IRModule:
    """Kernels whose math is as precise as torch's; 16-bit float functions run in float32."""
    return rewrite_calls(rewrite(mod, tirx.Mod, _remainder), precise)


def _remainder(node: tirx.Mod) -> ir.Expr:
    """A remainder of floats as a function, which has a formula; that of halves is exact in it."""
    dtype = dtype_of(node)
    if dtype not in ("float32", *HALVES):
        return node
    wide = [x.astype("float32") for x in (node.a, node.b)]
    return tirx.call_intrin("float32", "tirx.fmod", *wide).astype(dtype)


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
