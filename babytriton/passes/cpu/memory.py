"""Where the memory of kernels lies: parameters at any address, small locals on the stack."""

from __future__ import annotations

import math

import tvm
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import with_kernels
from babytriton.passes.blocks import parameters, with_types
from babytriton.passes.cpu.caches import LINE, LINE_BYTES
from babytriton.passes.intrinsics import rewrite
from babytriton.passes.statements import sequence
from babytriton.types import find_dtype

STACK = 16 << 10
"""Bytes that a local may take there: a row of 4096 float32."""

# Tells TVM to leave an allocation to the code generator, which takes it from the stack.
_KEEP = "disable_lower_builtin"


def any_address(mod: IRModule) -> IRModule:
    """Kernels that take their parameters to be aligned as a single element is, no more.

    TVM takes 64 bytes for granted, and a vector load from elsewhere ends the process. A load that
    need not be aligned takes no longer on today's processors where the address is aligned.
    """
    return with_kernels(mod, _with_unaligned_parameters)


def on_the_stack() -> tvm.transform.Pass:
    """Small locals of kernels on the stack, each from the start of a line of the caches on.

    For before TVM's lowering of calls to its runtime, which asks an allocator for what has the
    scope of a GPU's registers, and for a kilobyte and more, wherever it is needed: for each
    element, or for each row.
    """

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        return rewrite(mod, tirx.AllocBuffer, _kept)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.OnTheStack")


def in_vectors() -> tvm.transform.Pass:
    """Vectors in memory by their first number, for before code generation.

    TVM leaves sums of a vector and a constant in indices, and then takes number by number.
    """

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        return rewrite(mod, tirx.Add, _as_ramp)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.InVectors")


def _as_ramp(node: tirx.Add) -> ir.Expr:
    if not (isinstance(node.a, tirx.Broadcast) and isinstance(node.b, tirx.Ramp)):
        return node
    return tirx.Ramp(node.a.value + node.b.base, node.b.stride, node.b.lanes)


def _kept(allocation: tirx.AllocBuffer) -> tirx.Stmt:
    buffer = allocation.buffer
    dtype = tvm.DataType(str(buffer.ty.dtype))  # of vectors, where all accesses are
    is_known = find_dtype(str(dtype.with_lanes(1))) is not None
    if not is_known or not all(isinstance(size, tirx.IntImm) for size in buffer.ty.shape):
        return allocation
    size = math.prod(int(size) for size in buffer.ty.shape) * dtype.bits * dtype.lanes // 8
    if size > STACK:
        return allocation
    annotations = {**allocation.annotations, _KEEP: tirx.IntImm("bool", 1)}
    if size < LINE_BYTES or dtype.lanes > 1:
        return tirx.AllocBuffer(buffer, annotations)
    # TVM aligns arrays by 16 bytes; LLVM aligns what consists of vectors by the size of these.
    lines = tirx.decl_buffer((-(-size // LINE_BYTES),), f"int32x{LINE}", buffer.name)
    alias = tirx.DeclBuffer(buffer, data=tirx.buffer_data(lines))
    return sequence([tirx.AllocBuffer(lines, annotations), alias])


def _with_unaligned_parameters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return with_types(func, {param: _unaligned(param.ty) for param in parameters(func)})


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
