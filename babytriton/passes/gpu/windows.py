"""Reductions of windows on the GPU: pooling, and other sums of few neighbours."""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    inline_cheap,
    is_output,
    is_pointwise,
    nodes,
    of_shape,
    open_kernel,
    results,
    same_extents,
    uses,
)
from babytriton.passes.gpu.threads import bind_flat

MOST, LONGEST = 256, 16
"""Elements of a window, and of those that lie side by side: threads next to each other would read
far from each other, while all of them read what lies together where they share a window."""


class Windows(ScheduleRule):
    """Takes one reduction of windows that lie beside or over each other, and what follows it.

    A thread goes through one window, and computes from what it finds in a register.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        reduction, *after = inline_cheap(sch, infos)
        if not _is_of_windows(sch, reduction):
            return None
        points = [it.dom for it in reduction.iters if it.kind == "S"]
        for info in after:
            if not is_pointwise(sch, info) or not same_extents(info.dom(), points):
                return None
        if sum(is_output(sch, info) for info in (reduction, *after)) > 1:
            return None
        _thread_each_point(sch, reduction, target)
        for info in after:
            sch.reverse_compute_inline(info.block_rv)
        (kept,) = (region.source for region in sch.get(reduction.block_rv).writes)
        return s_tir.Schedule(_in_a_register(sch.mod["main"], kept), error_render_level="none")


def _is_of_windows(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether each result is of few elements, at places that its own moves."""
    if not info.is_reduction() or len(results(sch, info)) > 1:
        return False
    sizes = [it.dom for it in info.iters if it.kind != "S"]
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > MOST:
        return False
    axes = sch.get(info.block_rv).iter_vars
    own = [axis.var for axis in axes if axis.iter_type == tirx.IterVar.DataPar]
    others = [axis.var for axis in axes if axis.iter_type != tirx.IterVar.DataPar]
    extents = dict(zip(others, sizes))
    found = False
    for load in nodes(sch.get(info.block_rv).body, ir.TensorLoad):
        for place, index in enumerate(reversed(load.indices)):
            within = [extents[var] for var in others if uses(index, var)]
            found |= bool(within) and any(uses(index, var) for var in own)
            if place == 0 and math.prod(within) > LONGEST:
                return False
    return found


def _thread_each_point(sch: s_tir.Schedule, info: SBlockInfo, target: Target) -> None:
    """A thread for each result, which it has for itself until it is whole."""
    block = info.block_rv
    whole = sch.cache_write(block, 0, "local")
    loops = sch.get_loops(block)
    points = [loop for loop, it in zip(loops, info.iters) if it.kind == "S"]
    others = [loop for loop, it in zip(loops, info.iters) if it.kind != "S"]
    sch.reorder(*points, *others)
    thread = bind_flat(sch, sch.fuse(*points), target)
    sch.reverse_compute_at(whole, thread)
    sch.decompose_reduction(block, others[0])


def _in_a_register(func: tirx.PrimFunc, kept: tirx.Var) -> tirx.PrimFunc:
    """The kernel with a single number where a thread keeps one element of a buffer.

    TVM finds out that it is one, but not that its index is 0.
    """
    one = tirx.const(1, "int64")
    number = ir.Var(kept.name.removesuffix("_local"), of_shape(kept.ty, [one]))
    zero = tirx.const(0, "int64")

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(number, [zero]) if node.source.same_as(kept) else node

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if not node.buffer.same_as(kept):
            return node
        return tirx.BufferStore(number, node.value, [zero])

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if not node.source.same_as(kept):
            return node
        return tirx.BufferRegion(number, [ir.Range.from_min_extent(zero, one)])

    changes = [(ir.TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)]
    body = tvm_ffi.structural_map(func.body, changes)
    body = tvm_ffi.structural_map(body, (ir.Var, lambda x: number if x.same_as(kept) else x))
    return func.with_body(body)
