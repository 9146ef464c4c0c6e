"""Kernels that take tensors from any address, such as views into the middle of another."""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, tirx


def any_address(mod: IRModule) -> IRModule:
    """Kernels that take their parameters to be aligned as a single element is, no more.

    TVM takes 64 bytes for granted, and a vector load from elsewhere ends the process. A load that
    need not be aligned takes no longer on today's processors where the address is aligned.
    """
    functions = {
        var: _relaxed(func) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _relaxed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    parameters = {
        param: ir.Var(param.name, _unaligned(param.ty))
        for param in func.params
        if isinstance(param.ty, tirx.BufferType)
    }
    return tvm_ffi.structural_map(func, (ir.Var, lambda var: parameters.get(var, var)))


def _unaligned(type: tirx.BufferType) -> tirx.BufferType:
    """The type with an alignment of a byte, which code generators raise to that of an element."""
    return tirx.BufferType(
        type.dtype,
        type.storage_scope,
        type.shape,
        type.strides,
        type.elem_offset,
        1,
        type.offset_factor,
        type.layout,
        type.allocated_addr,
    )
