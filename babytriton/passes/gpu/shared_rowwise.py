"""Kernels that work row by row on the GPU, whose rows pass through shared memory."""

from __future__ import annotations

import math

from tvm import DataType, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    has_known_reducer,
    inline_cheap,
    open_kernel,
    reduced_length,
    results,
)
from babytriton.passes.gpu.threads import thread_count
from babytriton.passes.rows import (
    gather_rows,
    has_one_result,
    loops_inside,
    shared_rows,
    spatial,
)

WARP = 32

# Bytes of shared memory that reductions use to combine what the threads have.
SCRATCH = 4096

# What TVM combines within a warp by shuffles. For other types it relies on threads of a warp
# running in step, which no GPU since Volta promises: a race.
SHUFFLED = ("float16", "float32", "float64", "int32", "int64", "uint32")


class SharedRowwise(ScheduleRule):
    """Takes reductions along the last axes of shared rows, with pointwise blocks around them.

    Gives a thread block to each row: its threads share a row's elements and values, and combine
    what they reduced. Stands aside for several results (one thread would read what another has
    just written to global memory, without a barrier), for rows whose values overflow shared
    memory, for symbolic row lengths, for rows shorter than a warp, and for reducers and types
    that TVM cannot combine across threads.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        rows = shared_rows([sch.get(info.block_rv) for info in infos])
        if rows is not None and not fits_in_shared(sch, infos, len(rows), target):
            infos = inline_cheap(sch, infos, repeat_calls=True)
        reductions = [info for info in infos if info.is_reduction()]
        if (
            rows is None
            or not has_one_result(sch, infos)
            or not all(is_shared_reduction(sch, info) for info in reductions)
            or not fits_in_shared(sch, infos, len(rows), target)
        ):
            return None
        schedule_rows(sch, infos, len(rows), target)
        return sch


def is_shared_reduction(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether threads can share the reduction, and have each something to do."""
    length = reduced_length(info)
    types = [region.source.dtype for region in sch.get(info.block_rv).writes]
    return (
        length is not None
        and length >= WARP
        and all(dtype in SHUFFLED for dtype in types)
        and has_known_reducer(sch, info)
    )


def fits_in_shared(sch: s_tir.Schedule, infos: list[SBlockInfo], axes: int, target: Target) -> bool:
    """Whether the values that a row passes from block to block fit in shared memory."""
    needed = SCRATCH
    for info in infos[:-1]:
        dims = spatial(sch.get(info.block_rv))[axes:]
        if not all(isinstance(dim, int) for dim in dims):
            return False
        needed += math.prod(dims) * sum(DataType(b.dtype).itemsize for b in results(sch, info))
    return needed <= int(target.attrs.get("max_shared_memory_per_block", 49152))


def schedule_rows(sch: s_tir.Schedule, infos: list[SBlockInfo], axes: int, target: Target) -> None:
    """One thread block for each row, for all the blocks."""
    threads = row_threads(infos, target)
    row = gather_rows(sch, infos, [info.block_rv for info in infos], axes)
    sch.bind(row, "blockIdx.x")
    for info in infos:
        block = info.block_rv
        inner = loops_inside(sch, block, row)
        loop = sch.fuse(*inner) if inner else sch.add_unit_loop(block)
        step, thread = sch.split(loop, [None, threads])
        sch.reorder(thread, step)
        sch.bind(thread, "threadIdx.x")
        if info is not infos[-1]:
            for position in range(len(sch.get(block).writes)):
                sch.set_scope(block, position, "shared")


def row_threads(infos: list[SBlockInfo], target: Target) -> int:
    """Whole warps, a power of two, no more than a row has elements."""
    longest = max(reduced_length(info) or 1 for info in infos)
    threads = WARP
    while threads < min(longest, thread_count(target)):
        threads *= 2
    return threads
