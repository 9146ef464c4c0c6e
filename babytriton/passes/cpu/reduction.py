"""Reductions along other axes than the last, and of everything, on the CPU."""

from __future__ import annotations

import math
import re

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.axes import pieces
from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import (
    inline_cheap,
    is_at_least,
    is_one,
    is_pointwise,
    loop_of,
    open_kernel,
    uses,
)
from babytriton.passes.cpu.elementwise import PARALLEL, spread
from babytriton.passes.nests import fuse_reduced, pointwise_nests
from babytriton.passes.statements import is_number

# Columns that one task reduces: a few cache lines of each row, and accumulators that fit in L1.
COLUMNS = 256

# Columns whose sums fit in L1, beside the rows that pass through it.
FEW_COLUMNS = 4096

# Pieces that the rows are cut into where there are so few columns.
ROW_PIECES = 8


class Reduction(ScheduleRule):
    """Takes reductions of columns (the last axis stays) and of whole tensors, one by one.

    Columns are accumulated side by side, row after row, also those of which groups are reduced.
    Where that leaves too few tasks for the threads, the reduction is cut into a fixed number of
    pieces, whose results are then combined. Pointwise blocks around get loops of their own. Stands
    aside at any other reduction.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        # Again: what several blocks read, a single one does when these are inlined.
        infos = inline_cheap(sch, inline_cheap(sch, infos))
        reductions = [info for info in infos if info.is_reduction()]
        groups = [info for info in reductions if is_of_groups(sch, info)]
        others = [info for info in reductions if info not in groups]
        if not all(is_column(sch, info) or is_whole(info) for info in others):
            return None
        maps = [info for info in infos if not info.is_reduction()]
        if not all(is_pointwise(sch, info) for info in maps):
            return None
        for info in reductions:
            if is_whole(info):
                reduce_whole(sch, info)
            elif info in groups:
                reduce_groups(sch, info)
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


def is_of_groups(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether columns are reduced, and of these groups that lie side by side.

    So are groups of channels of images in channels_last.
    """
    block, kinds = sch.get(info.block_rv), info.dom_kind()
    if not isinstance(block.body, tirx.BufferStore) or not re.fullmatch("S+RR+", kinds):
        return False
    if not all(isinstance(it.dom, int) for it in info.iters):
        return False
    group, column = last_spatial(sch, info), block.iter_vars[-1].var
    reads = [load for load in nodes(block.body, ir.TensorLoad) if uses(load, column)]
    return bool(reads) and all(
        len(load.indices) > 2
        and load.indices[-1].same_as(column)
        and load.indices[-2].same_as(group)
        and not any(uses(i, column) or uses(i, group) for i in load.indices[:-2])
        for load in reads
    )


def last_spatial(sch: s_tir.Schedule, info: SBlockInfo) -> tirx.Var:
    variables = [it.var for it in sch.get(info.block_rv).iter_vars]
    return [var for var, it in zip(variables, info.iters) if it.kind == "S"][-1]


def reduce_whole(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Cut a long reduction into pieces for the threads, whose results are then combined.

    Pieces of everything, or of the longest axis where what is read does not lie without gaps.
    """
    block = info.block_rv
    loops = fuse_reduced(sch, info)
    if not is_at_least(info, PARALLEL):
        sch.decompose_reduction(block, loops[0])
        return
    extents = [sch.get(loop).extent for loop in loops]
    lengths = [int(extent) if isinstance(extent, tirx.IntImm) else None for extent in extents]
    longest = max(range(len(loops)), key=lambda n: lengths[n] or math.inf)
    length = lengths[longest]
    count = pieces(length or 0)
    if len(loops) > 1 and length is not None:
        count = min(count, length)
    piece, _ = sch.split(loops[longest], [count, None])
    part = sch.rfactor(piece, 0)
    reduced, (piece, *_) = reduced_and_others(sch, part)
    sch.reorder(piece, *reduced)
    sch.parallel(piece)
    sch.decompose_reduction(part, reduced[0])
    sch.decompose_reduction(block, sch.get_loops(block)[0])


def reduce_columns(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Accumulate columns side by side, row after row: strips of them, or pieces of the rows."""
    if is_at_least(info, PARALLEL) and is_few_columns(info):
        reduce_pieces(sch, info, 0, ROW_PIECES)
        return
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


def reduce_groups(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Accumulate all columns side by side, row after row, and then those of each group."""
    block, rows = info.block_rv, info.dom_kind().index("R")
    is_large = is_at_least(info, PARALLEL)
    part = sch.rfactor(sch.get_loops(block)[-1], rows)
    sch.decompose_reduction(block, sch.get_loops(block)[rows])
    tasks = math.prod(it.dom for it in info.iters[: rows - 1])
    is_cut = is_large and tasks < ROW_PIECES <= info.iters[rows].dom
    if is_cut:
        piece, _ = sch.split(sch.get_loops(part)[rows], [ROW_PIECES, None])
        whole, part = part, sch.rfactor(piece, 0)
        *others, piece, column = sch.get_loops(whole)[: rows + 1] + sch.get_loops(whole)[-1:]
        sch.reorder(piece, *others, column)
        sch.decompose_reduction(whole, piece)
    loops = sch.get_loops(part)
    *outer, group = loops[:rows]
    outer += loops[rows : rows + is_cut]
    *reduced, column = loops[rows + is_cut :]
    sch.reorder(*outer, *reduced, group, column)
    sch.fuse(group, column)
    if is_large and outer:
        sch.parallel(sch.fuse(*outer))
    sch.decompose_reduction(part, reduced[0])


def is_few_columns(info: SBlockInfo) -> bool:
    """Whether the sums of all columns fit in L1, and there are enough rows to share out."""
    columns = [it.dom for it in info.iters if it.kind == "S" and not is_one(it.dom)]
    reduced = [it.dom for it in info.iters if it.kind == "R" and not is_one(it.dom)]
    return (
        len(columns) == 1
        and len(reduced) == 1
        and isinstance(columns[0], int)
        and columns[0] <= FEW_COLUMNS
        and (not isinstance(reduced[0], int) or reduced[0] >= 2 * ROW_PIECES)
    )


def reduce_pieces(sch: s_tir.Schedule, info: SBlockInfo, axis: int, pieces: int) -> None:
    """Give each thread whole rows, which lie in memory one after the other.

    Args:
        sch: the kernel.
        info: the reduction of its columns.
        axis: which of the axes of rows is cut into pieces.
        pieces: how many, whose results are then combined.
    """
    block = info.block_rv
    rows, columns = reduced_and_others(sch, block)
    if pieces == 1:
        sch.reorder(*rows, *columns)
        sch.decompose_reduction(block, rows[0])
        return
    piece, _ = sch.split(rows[axis], [pieces, None])
    part = sch.rfactor(piece, 0)
    rows, columns = reduced_and_others(sch, part)
    piece, *columns = columns
    sch.reorder(piece, *rows, *columns)
    sch.parallel(piece)
    sch.decompose_reduction(part, rows[0])
    combined, columns = reduced_and_others(sch, block)  # to be reduced are the pieces' results
    sch.reorder(*combined, *columns)
    sch.decompose_reduction(block, combined[0])


def reduced_and_others(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV
) -> tuple[list[s_tir.schedule.LoopRV], list[s_tir.schedule.LoopRV]]:
    """The loops over the axes that are reduced and over the others, but for those of length 1."""
    reduced: list[s_tir.schedule.LoopRV] = []
    others: list[s_tir.schedule.LoopRV] = []
    for number, it in enumerate(sch.get(block).iter_vars):
        if not is_number(it.dom.extent, 1):
            is_reduced = it.iter_type == tirx.IterVar.CommReduce
            (reduced if is_reduced else others).append(loop_of(sch, block, number))
    return reduced, others


def strip_width(info: SBlockInfo) -> int:
    """Columns a task takes: all if few, else a divisor of their number if there is a good one."""
    width = [it.dom for it in info.iters if it.kind == "S"][-1]
    if not isinstance(width, int):
        return COLUMNS
    if width <= COLUMNS:
        return width
    fitting = [n for n in range(COLUMNS // 4, COLUMNS + 1) if width % n == 0]
    return max(fitting, default=COLUMNS)
