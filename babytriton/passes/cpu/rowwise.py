"""Kernels that work row by row on the CPU: softmax, layer_norm, sums along the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    CHEAP,
    inline_cheap,
    is_at_least,
    is_output,
    is_pointwise,
    open_kernel,
    reads_from,
)
from babytriton.passes.cpu.elementwise import PARALLEL
from babytriton.passes.cpu.reduction import is_of_groups
from babytriton.passes.cpu.row_loops import (
    fused_rows,
    gather_rows,
    has_one_result,
    loops_inside,
    sized_axes,
)
from babytriton.passes.nests import fuse_reduced, members, producers
from babytriton.passes.rows import RowWork, of_elements, row_work

SMALL = PARALLEL
"""Points that a block may have which runs, on one thread, when all rows are done."""

# Rounding to bfloat16 reads its number four times; a row of such numbers may not fit the caches.
_TEXT = 2 * CHEAP


class Rowwise(ScheduleRule):
    """Takes reductions along the last axes of shared rows, with pointwise blocks around them.

    Gives one parallel loop over the rows with all of a row's work inside; small blocks that
    need the results of all rows come after it. Stands aside where a block reads another row's
    values, for a single long row, and for groups of columns, whose rows lie in short pieces.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        work = row_work([sch.get(info.block_rv) for info in infos], SMALL)
        if work is None or any(map(partial(is_of_groups, sch), infos)):
            return None
        infos = inline_cheap(sch, infos, text=_TEXT, keep=_read_after(sch, infos, work))
        work = row_work([sch.get(info.block_rv) for info in infos], SMALL)
        if work is None or work.before or (not work.rows and is_at_least(infos[0], PARALLEL)):
            return None
        on_rows = [infos[n] for n in work.blocks]
        after = [infos[n] for n in work.after]
        if has_one_result(sch, on_rows, after):
            nests = [on_rows]
        else:
            late = of_results(sch, on_rows, len(work.rows))
            on_rows = [info for info in on_rows if info not in late]
            after = [info for info in infos if info in late or info in after]
            nests = row_nests(sch, on_rows)
        for nest in nests:
            schedule_rows(sch, nest, len(work.rows), after)
        for info in after:
            if info.is_reduction():
                sch.decompose_reduction(info.block_rv, fuse_reduced(sch, info)[0])
        return sch


def _read_after(
    sch: s_tir.Schedule, infos: Sequence[SBlockInfo], work: RowWork
) -> list[SBlockInfo]:
    """The blocks over a row's elements of which others read results when all rows are done."""
    after = [infos[n] for n in work.after]
    own = of_elements([sch.get(infos[n].block_rv) for n in work.blocks], work.rows)
    on_rows = [infos[n] for n in work.blocks if sch.get(infos[n].block_rv) in own]
    return [info for info in on_rows if any(reads_from(sch, later, info) for later in after)]


def of_results(sch: s_tir.Schedule, infos: list[SBlockInfo], axes: int) -> list[SBlockInfo]:
    """Blocks of a value for each row, of what is a result, that run after the rows as well.

    TVM moves none into the loop of others that reads these at places from a tensor.

    Args:
        sch: the kernel.
        infos: blocks that work on rows.
        axes: how many of a block's axes are the rows.
    """
    found: list[SBlockInfo] = []
    for info in reversed(infos):
        is_point = is_pointwise(sch, info) and len(sized_axes(info)) == axes
        readers = [other for other in infos if other is not info and reads_from(sch, other, info)]
        is_small = not is_at_least(info, SMALL + 1) and not is_output(sch, info)
        if is_point and is_small and all(reader in found for reader in readers):
            found.append(info)
    return found


def row_nests(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> list[list[SBlockInfo]]:
    """The blocks of a kernel of several results, grouped by what can share one loop over rows."""
    nests: list[list[SBlockInfo]] = []
    for info in infos:
        made = producers(sch, info)
        home = next((nest for nest in nests if made and made <= members(nest)), None)
        if home is None:
            nests.append([info])
        else:
            home.append(info)
    return nests


def schedule_rows(
    sch: s_tir.Schedule, nest: list[SBlockInfo], axes: int, after: list[SBlockInfo]
) -> None:
    """One loop over the rows for the whole nest, of which others read results `after` that."""
    blocks = [info.block_rv for info in nest]
    row = gather_rows(sch, nest, blocks, axes, fused_rows, after)
    if any(is_at_least(info, PARALLEL) for info in nest):
        sch.parallel(row)
    for info in nest:
        if info.is_reduction():
            start_outside(sch, info, row)


def start_outside(sch: s_tir.Schedule, info: SBlockInfo, row: s_tir.schedule.LoopRV) -> None:
    """Set the accumulator before the reduction's loop, not by a test at each of its steps."""
    if not isinstance(sch.get(info.block_rv).body, tirx.BufferStore):
        return
    fuse_reduced(sch, info)
    loops = loops_inside(sch, info.block_rv, row)
    if loops:
        sch.decompose_reduction(info.block_rv, loops[0])
