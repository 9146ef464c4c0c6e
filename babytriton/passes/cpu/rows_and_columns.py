"""Kernels that work row by row and reduce the columns of the same rows, on the CPU."""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_at_least, is_output, open_kernel
from babytriton.passes.cpu.elementwise import PARALLEL, spread
from babytriton.passes.cpu.lanes import STEPS
from babytriton.passes.cpu.reduction import FEW_COLUMNS, ROW_PIECES, reduce_pieces
from babytriton.passes.cpu.row_loops import gather_rows, has_one_result, rows_in_pieces
from babytriton.passes.cpu.rowwise import row_nests, start_outside
from babytriton.passes.nests import pointwise_nests
from babytriton.passes.rows_and_columns import RowAndColumnWork, rows_and_columns

# Pieces that rows are cut into, at most.
PIECES = 64

# Numbers that columns are reduced to, at most: they stay in L1 or L2 from row to row.
MOST_COLUMNS = 4 * FEW_COLUMNS


class RowsAndColumns(ScheduleRule):
    """Takes what goes along rows and reduces their columns, such as the way back of a norm.

    Cuts the rows into pieces for the threads, if there is work for several. The loops over the rows
    of a piece become one where loops are merged: so each row is read once. What pieces have of the
    columns is combined then. Stands aside where that is too much for the caches, where nothing but
    columns is needed, and for anything but sums: keys of numbers that are compared take longer
    beside others than rows take to be read again.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, inline_cheap(sch, infos))
        work = rows_and_columns([sch.get(info.block_rv) for info in infos])
        if work is None or work.before:
            return None
        on_rows, columns, after = (
            [infos[n] for n in numbers] for numbers in (work.on_rows, work.columns, work.after)
        )
        if not any(is_output(sch, info) for info in on_rows):
            return None
        if not all(isinstance(sch.get(x.block_rv).body.value, tirx.Add) for x in columns):
            return None
        cut = _cut(work, columns)
        if cut is None:
            return None
        is_single = has_one_result(sch, on_rows, columns)
        for nest in [on_rows] if is_single else row_nests(sch, on_rows):
            _spread_rows(sch, nest, len(work.rows), cut, columns)
        for info in columns:
            reduce_pieces(sch, info, *cut)
        for nest in pointwise_nests(sch, after):
            spread(sch, nest)
        return sch


def _cut(work: RowAndColumnWork, columns: list[SBlockInfo]) -> tuple[int, int] | None:
    """Which axis of the rows is cut into pieces, and into how many; None of rows that are too few.

    Or if there are too many columns. Into one where a single thread does all.
    """
    info, *_ = columns
    elements = [it.dom for it in info.iters if it.kind == "S"]
    if not all(isinstance(n, int) for n in elements):
        return None
    if math.prod(elements) * len(columns) > MOST_COLUMNS:
        return None
    rows = [n for n in work.rows if isinstance(n, int)]
    lengths = [n if isinstance(n, int) else math.inf for n in work.rows]
    axis = max(range(len(lengths)), key=lengths.__getitem__)
    if not is_at_least(info, PARALLEL):
        return axis, 1
    if len(rows) < len(lengths):
        return axis, ROW_PIECES
    pieces = min(PIECES, rows[axis] // 2, math.prod(rows) // (2 * STEPS))
    return (axis, max(pieces, ROW_PIECES)) if rows[axis] >= 2 * ROW_PIECES else None


def _spread_rows(
    sch: s_tir.Schedule,
    nest: list[SBlockInfo],
    axes: int,
    cut: tuple[int, int],
    after: list[SBlockInfo],
) -> None:
    """One loop over the rows of each piece for the whole nest."""
    blocks = [info.block_rv for info in nest]
    row = gather_rows(sch, nest, blocks, axes, rows_in_pieces(*cut), after)
    _, pieces = cut
    if pieces > 1:
        sch.parallel(sch.get_loops(blocks[0])[0])
    for info in nest:
        if info.is_reduction():
            start_outside(sch, info, row)
