"""Remainders of indices that LLVM cannot take for the indices themselves.

To LLVM a remainder by a power of two is a counter of so few bits. It makes a loop of vectors for as
long as that does not overflow, together with one of single numbers for where it does; and it leaves
out the question whether it does where it asks the same of a counter of more bits. Then the vectors
are read past the end: of `x * c.repeat(1, 8)` most numbers were wrong. So the remainders are those
of what LLVM knows nothing of.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.cpu.zeros import HAVE_ZEROS, bind_zero
from babytriton.passes.intrinsics import dtype_of
from babytriton.passes.statements import sequence


def own_remainders() -> tvm.transform.Pass:
    """Kernels whose remainders are their own, for before code generation."""

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        functions = {
            var: _with_own(func) if isinstance(func, tirx.PrimFunc) else func
            for var, func in mod.functions_items()
        }
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.OwnRemainders")


def _with_own(func: tirx.PrimFunc) -> tirx.PrimFunc:
    zeros: dict[str, tirx.Var] = {}

    def hidden(expr: ir.Expr) -> ir.Expr:
        zero = zeros.setdefault(dtype_of(expr), tirx.Var("zero", dtype_of(expr)))
        return tirx.bitwise_xor(expr, zero)

    def of_power(node: tirx.FloorMod | tirx.Mod) -> ir.Expr:
        return type(node)(hidden(node.a), node.b) if _is_of_index(node, 0) else node

    def of_bits(node: tirx.BitwiseAnd) -> ir.Expr:
        return tirx.BitwiseAnd(hidden(node.a), node.b) if _is_of_index(node, 1) else node

    changes = [(tirx.FloorMod, of_power), (tirx.Mod, of_power), (tirx.BitwiseAnd, of_bits)]
    body = tvm_ffi.structural_map(func.body, changes)
    if not zeros:
        return func
    return func.with_body(sequence([*map(bind_zero, zeros.values()), body]))


def _is_of_index(node: tirx.FloorMod | tirx.Mod | tirx.BitwiseAnd, less: int) -> bool:
    """Whether it is of an index, and of a power of two less a number."""
    if not isinstance(node.b, tirx.IntImm) or isinstance(node.a, tirx.IntImm):
        return False
    power = int(node.b) + less
    is_index = dtype_of(node.a) in HAVE_ZEROS and not nodes(node.a, ir.TensorLoad)
    return is_index and power > 0 and power & (power - 1) == 0
