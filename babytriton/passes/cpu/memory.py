"""Where the memory of kernels lies: parameters at any address, small locals on the stack."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import IRModule, ir, tirx


def any_address(mod: IRModule) -> IRModule:
    """Kernels that take their parameters to be aligned as a single element is, no more.

    TVM takes 64 bytes for granted, and a vector load from elsewhere ends the process. A load that
    need not be aligned takes no longer on today's processors where the address is aligned.
    """
    return _map_functions(mod, _with_unaligned_parameters)


def on_the_stack(mod: IRModule) -> IRModule:
    """Kernels whose locals are ordinary memory, which TVM puts on the stack where it is small.

    What has the scope of a GPU's registers it asks its allocator for, once for each element.
    """
    return _map_functions(mod, _with_plain_locals)


def _map_functions(mod: IRModule, fn: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> IRModule:
    functions = {
        var: fn(func) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_unaligned_parameters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    # An alignment of a byte, which code generators raise to that of an element.
    parameters = {
        param: ir.Var(param.name, _changed(param.ty, alignment=1))
        for param in func.params
        if isinstance(param.ty, tirx.BufferType)
    }
    return tvm_ffi.structural_map(func, (ir.Var, lambda var: parameters.get(var, var)))


def _with_plain_locals(func: tirx.PrimFunc) -> tirx.PrimFunc:
    plain: dict[ir.Var, ir.Var] = {}

    def renamed(var: ir.Var) -> ir.Var:
        if not isinstance(var.ty, tirx.BufferType) or var.ty.storage_scope != "local":
            return var
        if var not in plain:
            plain[var] = ir.Var(var.name, _changed(var.ty, scope="global"))
        return plain[var]

    return tvm_ffi.structural_map(func, (ir.Var, renamed))


def _changed(
    type: tirx.BufferType, scope: str | None = None, alignment: int | None = None
) -> tirx.BufferType:
    return tirx.BufferType(
        type.dtype,
        scope or type.storage_scope,
        type.shape,
        type.strides,
        type.elem_offset,
        alignment or type.data_alignment,
        type.offset_factor,
        type.layout,
        type.allocated_addr,
    )
