"""Reductions along other axes than the last, and of everything, on the CPU."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, get_sblock_info
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    inline_cheap,
    is_at_least,
    is_pointwise,
    nodes,
    open_kernel,
    reduced_length,
    uses,
)
from babytriton.passes.cpu.elementwise import PARALLEL, spread
from babytriton.passes.cpu.lanes import lane_count, loop_of, split_lanes, vectorize_lanes
from babytriton.passes.nests import pointwise_nests

# Columns that one task reduces: a few cache lines of each row, and accumulators that fit in L1.
COLUMNS = 256

# Pieces that a long reduction is cut into, for threads to work on. A fixed number, not the
# machine's: sums then come out the same on every machine.
PIECES = 64


class Reduction(ScheduleRule):
    """Takes reductions of columns (the last axis stays) and of whole tensors, one by one.

    Columns are accumulated side by side, row after row. Where that leaves too few tasks for the
    threads, the reduction is cut into a fixed number of pieces, whose results are then combined.
    Pointwise blocks around get loops of their own. Stands aside at any other reduction.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        reductions = [info for info in infos if info.is_reduction()]
        if not all(is_column(sch, info) or is_whole(info) for info in reductions):
            return None
        maps = [info for info in infos if not info.is_reduction()]
        if not all(is_pointwise(sch, info) for info in maps):
            return None
        for info in reductions:
            if is_whole(info):
                reduce_whole(sch, info)
            else:
                reduce_columns(sch, info)
        for nest in pointwise_nests(sch, maps):
            spread(sch, nest)
        return sch


def is_whole(info: SBlockInfo) -> bool:
    """Whether a single number comes out."""
    return all(it.kind == "R" or it.dom == 1 for it in info.iters)


def is_column(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether the last spatial axis is the last axis of all it reads: columns lie side by side."""
    block = sch.get(info.block_rv)
    if not isinstance(block.body, tirx.BufferStore) or set(info.dom_kind()) != {"S", "R"}:
        return False
    column = last_spatial(sch, info)
    reads = [load for load in nodes(block.body, ir.TensorLoad) if uses(load, column)]
    return all(
        load.indices[-1].same_as(column) and not any(uses(i, column) for i in load.indices[:-1])
        for load in reads
    )


def last_spatial(sch: s_tir.Schedule, info: SBlockInfo) -> tirx.Var:
    variables = [it.var for it in sch.get(info.block_rv).iter_vars]
    return [var for var, it in zip(variables, info.iters) if it.kind == "S"][-1]


def reduce_whole(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Cut into pieces for the threads, each piece in vector lanes."""
    pieces = piece_count(info)
    if pieces > 1:
        info = cut(sch, info, pieces)
        sch.parallel(sch.get_loops(info.block_rv)[0])
    lanes = lane_count(sch, info)
    if lanes > 1:
        partial = split_lanes(sch, info, lanes)
        step = vectorize_lanes(sch, partial)
        sch.decompose_reduction(partial, step)
        if pieces > 1:
            sch.reverse_compute_at(info.block_rv, sch.get_loops(partial)[0])


def piece_count(info: SBlockInfo) -> int:
    """Into how many equal pieces to cut the reduction; 1 for none."""
    length = reduced_length(info)
    if length is None or not is_at_least(info, PARALLEL):
        return 1
    return max(n for n in range(1, PIECES + 1) if length % n == 0)


def cut(sch: s_tir.Schedule, info: SBlockInfo, pieces: int) -> SBlockInfo:
    """Reduce `pieces` parts apart, then their results; the block of the parts, its loops first."""
    loops = sch.get_loops(info.block_rv)
    reduced = [loop for loop, it in zip(loops, info.iters) if it.kind == "R"]
    piece, _ = sch.split(sch.fuse(*reduced), [pieces, None])
    part = sch.rfactor(piece, 0)
    sch.reorder(
        piece_loop := loop_of(sch, part, 0),
        *[loop for loop in sch.get_loops(part) if not same_loop(sch, loop, piece_loop)],
    )
    return get_sblock_info(sch, part)


def same_loop(
    sch: s_tir.Schedule, left: s_tir.schedule.LoopRV, right: s_tir.schedule.LoopRV
) -> bool:
    return bool(sch.get(left).loop_var.same_as(sch.get(right).loop_var))


def reduce_columns(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Accumulate a strip of columns at once, row after row."""
    block = info.block_rv
    loops = sch.get_loops(block)
    kinds = info.dom_kind()
    *outer, column = [loop for loop, kind in zip(loops, kinds) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    strip, lane = sch.split(column, [None, strip_width(info)])
    sch.reorder(*outer, strip, *reduced, lane)
    task = sch.fuse(*outer, strip)
    if is_at_least(info, PARALLEL):
        sch.parallel(task)
    sch.decompose_reduction(block, reduced[0])


def strip_width(info: SBlockInfo) -> int:
    """Columns a task takes: all if few, else a divisor of their number if there is a good one."""
    width = [it.dom for it in info.iters if it.kind == "S"][-1]
    if not isinstance(width, int):
        return COLUMNS
    if width <= COLUMNS:
        return width
    fitting = [n for n in range(COLUMNS // 4, COLUMNS + 1) if width % n == 0]
    return max(fitting, default=COLUMNS)
