"""Kernels that work row by row on the CPU: softmax, layer_norm, sums along the last axes."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_at_least, open_kernel
from babytriton.passes.cpu.elementwise import PARALLEL
from babytriton.passes.cpu.lanes import lane_count, split_lanes, vectorize_lanes
from babytriton.passes.nests import producing_nest
from babytriton.passes.rows import gather_rows, has_one_result, loops_inside, shared_rows


class Rowwise(ScheduleRule):
    """Takes reductions along the last axes of shared rows, with pointwise blocks around them.

    Gives one parallel loop over the rows with all of a row's work inside, and float reductions
    in vector lanes where a number of lanes divides the row. Stands aside where a block reads
    another row's values, and for a single long row.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        rows = shared_rows(sch, infos)
        if rows is None or (not rows and is_at_least(infos[0], PARALLEL)):
            return None
        nests = [infos] if has_one_result(sch, infos) else row_nests(sch, infos)
        for nest in nests:
            schedule_rows(sch, nest, len(rows))
        return sch


def row_nests(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> list[list[SBlockInfo]]:
    """The blocks of a kernel of several results, grouped by what can share one loop over rows."""
    nests: list[list[SBlockInfo]] = []
    for info in infos:
        home = producing_nest(sch, info, nests)
        if home is None:
            nests.append([info])
        else:
            home.append(info)
    return nests


def schedule_rows(sch: s_tir.Schedule, nest: list[SBlockInfo], axes: int) -> None:
    """One loop over the rows for the whole nest."""
    blocks = []
    partials = []
    for info in nest:
        lanes = lane_count(sch, info) if info.is_reduction() else 1
        if lanes > 1:
            partials.append(split_lanes(sch, info, lanes))
            blocks.append(partials[-1])
        blocks.append(info.block_rv)
    row = gather_rows(sch, nest, blocks, axes)
    if any(is_at_least(info, PARALLEL) for info in nest):
        sch.parallel(row)
    steps = [vectorize_lanes(sch, partial) for partial in partials]
    # Last, since a block and its separate start no longer look like one sound reduction to TVM,
    # which then refuses to parallelize or vectorize around them.
    for partial, step in zip(partials, steps):
        sch.decompose_reduction(partial, step)
    for info in nest:
        if info.is_reduction():
            start_outside(sch, info, row)


def start_outside(sch: s_tir.Schedule, info: SBlockInfo, row: s_tir.schedule.LoopRV) -> None:
    """Set the accumulator before the reduction's loop, not by a test at each of its steps."""
    loops = loops_inside(sch, info.block_rv, row)
    if loops and isinstance(sch.get(info.block_rv).body, tirx.BufferStore):
        sch.decompose_reduction(info.block_rv, loops[0])
