"""How threads share the tiles of a product's results."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.blocks import is_at_least
from babytriton.passes.contractions import Contraction, without_casts
from babytriton.passes.statements import is_number

SHARED = 1 << 17
"""Products. For fewer, waking the other threads costs more than they save."""


def in_tasks(
    sch: s_tir.Schedule,
    product: Contraction,
    store: s_tir.schedule.SBlockRV,
    rows: list[int],
    columns: int,
    by_columns: bool = False,
) -> tuple[s_tir.schedule.LoopRV, list[s_tir.schedule.LoopRV], s_tir.schedule.LoopRV]:
    """Store results task by task, each of which has some of their rows and columns.

    Args:
        sch: the kernel.
        product: what is stored.
        store: the block that stores it.
        rows: how many a task has: the extents of loops, one in the other.
        columns: how many it has.
        by_columns: whether a task has all rows.

    Returns:
        The loop over the tasks, those over a task's rows, and that over its columns.
    """
    _without_units(sch, store)
    loops = sch.get_loops(store)
    outer = [loop for n, loop in enumerate(loops) if n not in (product.row, product.column)]
    task, *steps = sch.split(loops[product.row], [None, *rows])
    panel, j = sch.split(loops[product.column], [None, columns])
    if by_columns:
        sch.reorder(panel, *outer, task, *steps, j)
        tasks = panel
    else:
        # Where a task has one tile, as of an unknown number, the next one has the same columns.
        order = (task, panel) if product.height is not None else (panel, task)
        sch.reorder(*outer, *order, *steps, j)
        tasks = sch.fuse(*outer, *order)
    if is_at_least(product.info, SHARED):
        sch.parallel(tasks)
    return tasks, steps, j


def _without_units(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Leave out the axes of a block that have one element, as those of the product are."""
    axes = [tirx.Var(it.var.name, it.var.ty.dtype) for it in sch.get(block).iter_vars]
    sizes = [it.dom.extent for it in sch.get(block).iter_vars]
    longer = [axis for axis, size in zip(axes, sizes) if not is_number(size, 1)]
    if len(longer) < len(axes):
        sch.transform_block_layout(block, tirx.IndexMap(axes, longer, None))


def storing(
    sch: s_tir.Schedule,
    product: Contraction,
    epilogue: SBlockInfo | None,
    added: s_tir.schedule.SBlockRV | None,
) -> s_tir.schedule.SBlockRV:
    """The block that stores results, which are added up in memory of a task's own.

    Args:
        sch: the kernel.
        product: what is added up.
        epilogue: what is computed from it.
        added: copies what there is of a product that was filled up.
    """
    block = product.info.block_rv
    if epilogue is not None and added is not None:
        sch.compute_inline(added)
    store = added if epilogue is None else epilogue.block_rv
    if store is None:
        return sch.cache_write(block, 0, "local")
    sch.set_scope(block, 0, "local")
    return store


def store_in_vectors(
    sch: s_tir.Schedule,
    store: s_tir.schedule.SBlockRV,
    i: s_tir.schedule.LoopRV,
    j: s_tir.schedule.LoopRV,
) -> None:
    """Store the rows and columns of a tile at once, if nothing is computed from them.

    Args:
        sch: the kernel.
        store: the block that stores them.
        i, j: the loops over them.
    """
    if isinstance(without_casts(sch.get(store).body.value), ir.TensorLoad):
        sch.unroll(i)
        sch.vectorize(j)
