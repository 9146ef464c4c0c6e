"""One loop over rows for the blocks that work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.blocks import is_one, is_output, reads_from, same_extents

RowOf = Callable[[s_tir.Schedule, s_tir.schedule.SBlockRV, SBlockInfo, int], s_tir.schedule.LoopRV]
"""Makes the loop over the rows of a block, of which so many axes are the rows."""


def has_one_result(
    sch: s_tir.Schedule, infos: list[SBlockInfo], after: Sequence[SBlockInfo] = ()
) -> bool:
    """Whether only the last block writes what is a result of the kernel, or is read `after`."""
    return not any(
        is_output(sch, info) or any(reads_from(sch, later, info) for later in after)
        for info in infos[:-1]
    )


def gather_rows(
    sch: s_tir.Schedule,
    nest: list[SBlockInfo],
    blocks: list[s_tir.schedule.SBlockRV],
    axes: int,
    row_of: RowOf,
    after: Sequence[SBlockInfo] = (),
) -> s_tir.schedule.LoopRV:
    """Move the blocks of a nest into one loop over the rows, which is returned.

    Args:
        sch: the kernel.
        nest: its blocks that are moved.
        blocks: the nest's, with the partial reductions that were made for some.
        axes: how many of a block's axes are the rows.
        row_of: makes the loop over the rows of a block.
        after: the blocks that read what some of the nest compute, and are not moved.
    """
    if has_one_result(sch, nest, after):
        row = row_of(sch, blocks[-1], nest[-1], axes)
        for block in reversed(blocks[:-1]):
            sch.compute_at(block, row, preserve_unit_loops=True)
        return row
    # TVM moves a result only to what it reads, not to who reads it.
    row = row_of(sch, blocks[0], nest[0], axes)
    for info, block in zip(nest[1:], blocks[1:]):
        sch.reverse_compute_at(block, row, preserve_unit_loops=True)
        # It moves only those points that read what is there already: not, say, a padding.
        whole = [it.dom for it in info.iters if not is_one(it.dom)][axes:]
        moved = [sch.get(loop).extent for loop in loops_inside(sch, block, row)]
        moved = [int(n) if isinstance(n, tirx.IntImm) else n for n in moved]
        if not same_extents([n for n in moved if not is_one(n)], whole):
            raise ValueError(f"{info.name} does not read its row at every point")
    return row


def fused_rows(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, info: SBlockInfo, axes: int
) -> s_tir.schedule.LoopRV:
    """The block's loops over the rows, as one."""
    loops = sch.get_loops(block)
    if axes == 0:  # A single row.
        return sch.add_unit_loop(loops[0])
    return sch.fuse(*loops[: sized_axes(info)[axes - 1] + 1])


def rows_in_pieces(axis: int, pieces: int) -> RowOf:
    """Makes the innermost of a block's loops over the rows, of which one is cut.

    The loop over the pieces is the outermost.

    Args:
        axis: which of the axes of rows is cut.
        pieces: into how many pieces.
    """

    def row_of(
        sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, info: SBlockInfo, axes: int
    ) -> s_tir.schedule.LoopRV:
        loops = sch.get_loops(block)
        rows = [loops[place] for place in sized_axes(info)[:axes]]
        if pieces == 1:
            return rows[-1]
        piece, rows[axis] = sch.split(rows[axis], [pieces, None])
        sch.reorder(piece, *rows)
        return rows[-1]

    return row_of


def sized_axes(info: SBlockInfo) -> list[int]:
    """The places of the block's axes that are not 1."""
    return [place for place, it in enumerate(info.iters) if not is_one(it.dom)]


def loops_inside(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, row: s_tir.schedule.LoopRV
) -> list[s_tir.schedule.LoopRV]:
    """The block's loops within the loop over the rows."""
    loops = sch.get_loops(block)
    outer = sch.get(row).loop_var
    position = next(i for i, loop in enumerate(loops) if sch.get(loop).loop_var.same_as(outer))
    return list(loops[position + 1 :])
