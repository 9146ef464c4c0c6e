"""Kernels that are the same are one, which is called several times.

The layers of a network, or the steps of a loop that is written out, make kernels that differ in
nothing but what they are given. One of these is scheduled, compiled and shown.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule

from babytriton.ops.primfunc import is_users
from babytriton.passes.alike import Alike


def without_duplicates(mod: IRModule) -> IRModule:
    """A program that calls one kernel where several compute the same, for the same lines.

    Args:
        mod: the program, of fused kernels that are not scheduled. One for several devices stays as
            it is: a kernel is compiled for that of the tensors that it is given.
    """
    if "vdevice" in mod.global_infos:
        return mod
    kernels = [
        var
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not is_users(func)
    ]
    same = same_as_before(mod, kernels)
    if not same:
        return mod
    functions = {var: func for var, func in mod.functions_items() if var not in same}
    for var, func in functions.items():
        if isinstance(func, relax.Function):
            functions[var] = tvm_ffi.structural_map(
                func, (ir.GlobalVar, lambda kernel: same.get(kernel, kernel))
            )
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def same_as_before(
    mod: IRModule, kernels: Iterable[ir.GlobalVar]
) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """The one before it for each kernel that is the same as another, its attributes included."""
    alike: Alike[ir.GlobalVar] = Alike()
    first = {var: alike.first(mod[var].without_attr("global_symbol"), var) for var in kernels}
    return {var: before for var, before in first.items() if not before.same_as(var)}
