"""Kernels that work row by row: softmax, layer_norm, sums along the last axes.

Their blocks share leading axes, the rows; what a block computes for a row, only that row needs.
So all of a row's work can stand in one loop over the rows, where it finds its values close by.
"""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.blocks import (
    is_one,
    is_output,
    is_pointwise,
    loads,
    nodes,
    results,
    same_extents,
    spatial,
    uses,
)

Rows = list[int | tirx.Expr]


def shared_rows(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> Rows | None:
    """The extents of the axes that lead every block and that none reduces.

    None if the kernel is not row-wise: some block reduces other axes than its last, has other
    leading axes, or reads what another computes for another row.
    """
    reductions = [info for info in infos if info.is_reduction()]
    if not reductions:
        return None
    rows = spatial(reductions[0])
    for info in infos:
        if info.is_reduction():
            fits = same_extents(spatial(info), rows) and reduces_last_axes(sch, info)
        else:
            fits = is_pointwise(sch, info) and same_extents(spatial(info)[: len(rows)], rows)
        if not fits:
            return None
    return rows if rows_are_apart(sch, infos, len(rows)) else None


def reduces_last_axes(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether the block reduces its trailing axes, and they are the last of what it reads."""
    if "S" in info.dom_kind().lstrip("S") or "O" in info.dom_kind():
        return False
    block = sch.get(info.block_rv)
    inner = block.iter_vars[-1].var
    reads = [load for load in nodes(block.body, ir.TensorLoad) if uses(load, inner)]
    return not any(
        uses(index, inner)
        for load in reads
        for index in without_unit_axes(load.source, load.indices)[:-1]
    )


def rows_are_apart(sch: s_tir.Schedule, infos: list[SBlockInfo], axes: int) -> bool:
    """Whether no block reads what another computes for another row.

    TVM does not check it when it moves a consumer: of `s[i] * s[j]` the diagonal would remain.
    """
    return all(
        reads_own_row(sch, info, member, axes)
        for position, info in enumerate(infos)
        for member in infos[:position]
    )


def reads_own_row(sch: s_tir.Schedule, info: SBlockInfo, member: SBlockInfo, axes: int) -> bool:
    """Whether the block, in a row, reads of `member`'s values that row's only."""
    rows = row_variables(sch, info)[:axes]
    return all(
        len(leading) == axes and all(index.same_as(row) for index, row in zip(leading, rows))
        for buffer in results(sch, member)
        for load in loads(sch, info.block_rv, buffer)
        for leading in [without_unit_axes(buffer, load.indices)[:axes]]
    )


def row_variables(sch: s_tir.Schedule, info: SBlockInfo) -> list[tirx.Var]:
    variables = [it.var for it in sch.get(info.block_rv).iter_vars]
    return [var for var, it in zip(variables, info.iters) if it.kind == "S" and not is_one(it.dom)]


def without_unit_axes(buffer: tirx.Buffer, indices: list[ir.Expr]) -> list[ir.Expr]:
    """The indices of the axes that are not 1 long (`keepdim` leaves such)."""
    return [
        index
        for index, size in zip(indices, buffer.shape)
        if not (isinstance(size, tirx.IntImm) and int(size) == 1)
    ]


def has_one_result(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> bool:
    """Whether only the last block writes a result of the kernel."""
    return not any(is_output(sch, info) for info in infos[:-1])


def gather_rows(
    sch: s_tir.Schedule,
    nest: list[SBlockInfo],
    blocks: list[s_tir.schedule.SBlockRV],
    axes: int,
) -> s_tir.schedule.LoopRV:
    """Move the blocks of a nest into one loop over the rows, which is returned.

    `blocks` are the nest's, with the partial reductions that were made for some.
    """
    if has_one_result(sch, nest):
        row = row_loop(sch, blocks[-1], nest[-1], axes)
        for block in reversed(blocks[:-1]):
            sch.compute_at(block, row, preserve_unit_loops=True)
        return row
    # TVM moves a result only to what it reads, not to who reads it.
    row = row_loop(sch, blocks[0], nest[0], axes)
    for block in blocks[1:]:
        sch.reverse_compute_at(block, row, preserve_unit_loops=True)
    return row


def row_loop(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, info: SBlockInfo, axes: int
) -> s_tir.schedule.LoopRV:
    """The block's loops over the rows, as one."""
    loops = sch.get_loops(block)
    if axes == 0:  # A single row.
        return sch.add_unit_loop(loops[0])
    sizes = [position for position, it in enumerate(info.iters) if not is_one(it.dom)]
    return sch.fuse(*loops[: sizes[axes - 1] + 1])


def loops_inside(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, row: s_tir.schedule.LoopRV
) -> list[s_tir.schedule.LoopRV]:
    """The block's loops within the loop over the rows."""
    loops = sch.get_loops(block)
    outer = sch.get(row).loop_var
    position = next(i for i, loop in enumerate(loops) if sch.get(loop).loop_var.same_as(outer))
    return list(loops[position + 1 :])
