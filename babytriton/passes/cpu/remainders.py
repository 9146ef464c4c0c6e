"""Remainders of indices that LLVM cannot take for the indices themselves.

LLVM takes a remainder by a power of two for a counter of so few bits. It makes a loop of vectors
for as long as that does not overflow, and one of single numbers for what is beyond; but it asks no
more whether the counter overflows where it has asked the same of one of more bits. Then vectors are
read past the end: of `x * c.repeat(1, 8)` most numbers were wrong. So the remainders are those of
what LLVM knows nothing of.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.cpu.zeros import DTYPES, bind_zero
from babytriton.passes.intrinsics import dtype_of
from babytriton.passes.statements import sequence


def own_remainders(mod: IRModule) -> IRModule:
    """Kernels whose remainders are their own, for before code generation."""
    return with_kernels(mod, _with_own)


def _with_own(func: tirx.PrimFunc) -> tirx.PrimFunc:
    zeros: dict[str, tirx.Var] = {}

    def hidden(expr: ir.Expr) -> ir.Expr:
        zero = zeros.setdefault(dtype_of(expr), tirx.Var("zero", dtype_of(expr)))
        return tirx.bitwise_xor(expr, zero)

    def of_power(node: tirx.FloorMod | tirx.Mod) -> ir.Expr:
        if not _is_index(node.a) or not _is_power_of_two(node.b):
            return node
        return type(node)(hidden(node.a), node.b)

    def of_bits(node: tirx.BitwiseAnd) -> ir.Expr:
        is_mask = isinstance(node.b, tirx.IntImm) and _is_power_of_two(node.b + 1)
        return tirx.BitwiseAnd(hidden(node.a), node.b) if is_mask and _is_index(node.a) else node

    changes = [(tirx.FloorMod, of_power), (tirx.Mod, of_power), (tirx.BitwiseAnd, of_bits)]
    body = tvm_ffi.structural_map(func.body, changes)
    if not zeros:
        return func
    return func.with_body(sequence([*map(bind_zero, zeros.values()), body]))


def _is_index(expr: ir.Expr) -> bool:
    """Whether it may be an index that a loop counts: neither vectors nor what is in memory."""
    is_number = dtype_of(expr) in DTYPES and not isinstance(expr, tirx.IntImm)
    return is_number and not nodes(expr, ir.TensorLoad)


def _is_power_of_two(expr: ir.Expr) -> bool:
    number = int(expr) if isinstance(expr, tirx.IntImm) else 0
    return number > 0 and number & (number - 1) == 0
