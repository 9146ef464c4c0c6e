"""Products that round before something is added to them, as torch's do.

TVM lets LLVM make one instruction with one rounding of a product and a sum. Then `a * b - c * d` is
no zero for equal products, the root of `x * x - y * y` may be that of a negative number, and the
largest of some products less their maximum is not 0. A product that is a fused multiply-add itself,
of a zero that LLVM cannot know to be one, stays what it is, and takes no longer.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import parameters
from babytriton.passes.cpu.zeros import bind_zero
from babytriton.passes.intrinsics import dtype_of
from babytriton.passes.statements import sequence

_FLOATS = ("float32", "float64")


def rounded_products(mod: IRModule) -> IRModule:
    """Kernels as plain loops -> the same, with products that round."""
    functions = {
        var: _rounding(func) if isinstance(func, tirx.PrimFunc) and parameters(func) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _rounding(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body.block
    # What is in a parameter has been rounded when it is read again.
    locals_ = {allocation.buffer for allocation in nodes(root.body, tirx.AllocBuffer)}
    zeros: dict[str, tirx.Var] = {}

    def rounded(expr: ir.Expr) -> ir.Expr:
        dtype = dtype_of(expr)
        if not isinstance(expr, tirx.Mul) or dtype not in _FLOATS:
            return expr
        if _is_power_of_two(expr.a) or _is_power_of_two(expr.b):  # which is exact
            return tirx.Mul(rounded(expr.a), rounded(expr.b))
        zero = zeros.setdefault(dtype, tirx.Var("zero", dtype))
        return tirx.call_intrin(expr.ty, "tirx.fma", expr.a, expr.b, zero)

    def add(node: tirx.Add | tirx.Sub) -> ir.Expr:
        return type(node)(rounded(node.a), rounded(node.b))

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in locals_:
            return node
        return tirx.BufferStore(node.buffer, rounded(node.value), node.indices)

    changes = [(tirx.Add, add), (tirx.Sub, add), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(root.body, changes)
    if not zeros:
        return func
    block = s_tir.SBlock(
        [], [], [], root.name_hint, sequence([*map(bind_zero, zeros.values()), body])
    )
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def _is_power_of_two(expr: ir.Expr) -> bool:
    """Whether it is a power of two, whatever its sign."""
    return isinstance(expr, tirx.FloatImm) and abs(math.frexp(float(expr.value))[0]) == 0.5
