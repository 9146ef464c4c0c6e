"""What kernels of a GPU read once and no cache could keep: loads that leave what a cache has there.

A cache would make room for such numbers by what others may still need, and by what was written
before and has to go to memory then, in the time of this kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import in_order_of_calls
from babytriton.passes.gpu.launches import kernels_of
from babytriton.passes.gpu.writing import item_bytes
from babytriton.passes.launch_names import of_launch

LARGE = 8 << 20
"""Bytes from which on what is read takes a good part of a cache."""

SMALL = 8
"""Results of so many times fewer bytes take no room of what is read. Where they do, an H200 took up
to 5 % longer with such loads."""


def streamed(mod: IRModule) -> dict[str, frozenset[str]]:
    """By the kernel's name, the tensors whose loads are to leave nothing in caches.

    Those that are large, and that one kernel goes through once, for results that are small beside
    them.
    """
    return {
        of_launch(name, place): frozenset(_streamed(func, kernel))
        for name, func in in_order_of_calls(mod).items()
        for place, kernel in enumerate(kernels_of(func))
    }


def _streamed(func: tirx.PrimFunc, kernel: tirx.For) -> Iterator[str]:
    stored = {store.buffer for store in nodes(kernel, tirx.BufferStore)}
    written = sum(_bytes(buffer) for buffer in stored if buffer.scope() == "global")
    for param in func.params:
        is_tensor = isinstance(param.ty, tirx.BufferType)
        if not is_tensor or str(param.ty.dtype) == "bool" or (size := _bytes(param)) < LARGE:
            continue  # CUDA has no such load of bools
        read = _bytes_read(kernel, param)
        is_once = read < 2 * size and _bytes_read(func.body, param) == read
        if is_once and min(read, size) >= max(LARGE, SMALL * written):
            yield param.name


def _bytes_read(stmt: tirx.Stmt, buffer: tirx.Var) -> float:
    """How many bytes a statement loads of a buffer, tests aside; infinity if that is not known."""
    read = 0.0

    def visit(part: tirx.Stmt, times: float) -> None:
        def of_loop(loop: tirx.For) -> tvm_ffi.WalkResult:
            visit(loop.body, times * _number(loop.extent))
            return tvm_ffi.WalkResult.SKIP

        def of_load(load: ir.TensorLoad) -> None:
            nonlocal read
            read += times if load.source.same_as(buffer) else 0

        ways = [(tirx.For, of_loop), (ir.TensorLoad, of_load)]
        tvm_ffi.structural_walk(part, ways, order="pre")

    visit(stmt, 1)
    return read * item_bytes(str(buffer.ty.dtype))


def _bytes(buffer: tirx.Var) -> float:
    """Of all elements; infinity where a call tells how many there are."""
    return math.prod(map(_number, buffer.ty.shape)) * item_bytes(str(buffer.ty.dtype))


def _number(extent: ir.Expr) -> float:
    return int(extent) if isinstance(extent, tirx.IntImm) else math.inf
