"""Matrix products and convolutions on the CPU, in tiles of results that registers hold.

Where no tile divides a matrix product, tiles go over its ends: to rows that are read again, and
columns that a copy is filled up with. Convolutions get smaller tiles.
"""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import is_one, loop_of, uses
from babytriton.passes.contractions import Contraction
from babytriton.passes.cpu.caches import element_bytes
from babytriton.passes.cpu.costs import Costs
from babytriton.passes.cpu.edges import mark_tile, mark_tiles
from babytriton.passes.cpu.operands import (
    Panels,
    inline_padding,
    is_crowded,
    largest_divisor,
    lies_along,
    pad,
    row_operand,
)
from babytriton.passes.cpu.registers import Registers
from babytriton.passes.cpu.tasks import in_tasks, store_in_vectors, storing

# At most so many tiles one below the other share a panel of columns while it is in cache.
TASK_TILES = 44

# With fewer tasks, threads have uneven shares of them; of fewer rows, copies of panels are too much
# of the work of a task.
TASKS, TASK_ROWS = 16, 48

# Of an operand of so many bytes, a copy of its columns takes longer than it saves.
SMALL = 1 << 18

# For the sums of fewer products, it makes no difference how long these take.
SHORT = 16

# To copy the operand with the rows makes a product take so much longer.
COPIED_ROWS = 1.05

# Rows of a tile where a call tells how many there are of all.
ROWS_OF_ANY = 8


def tile(
    sch: s_tir.Schedule,
    product: Contraction,
    epilogue: SBlockInfo | None,
    sizes: tuple[int, int],
    lanes: int,
) -> bool:
    """Compute results in tiles held in registers, and store each tile through the epilogue.

    Args:
        sch: the kernel.
        product: what is computed.
        epilogue: what is computed from it.
        sizes: the rows and columns of a tile.
        lanes: of a register.

    Returns:
        False, with nothing done, where no tile fits.
    """
    rows, columns = sizes
    if rows * columns == 1:
        return False
    if is_matrix_product(sch, product):
        _tile_matrix(sch, product, epilogue, sizes, lanes)
    else:
        tiles = None if product.height is None else -(-product.height // rows)
        shared = 1 if tiles is None else largest_divisor(tiles, TASK_TILES)
        store = storing(sch, product, epilogue, None)
        _, step = _tile_loops(sch, product, store, (shared, rows, columns))
        sch.compute_at(product.info.block_rv, step, preserve_unit_loops=True)
    _accumulate(sch, product)
    return True


def _tile_matrix(
    sch: s_tir.Schedule,
    product: Contraction,
    epilogue: SBlockInfo | None,
    sizes: tuple[int, int],
    lanes: int,
) -> None:
    """Put a matrix product in tiles that read copies of operands, where these pay."""
    rows, columns = sizes
    height, width = product.height, product.width
    tiles = None if height is None else -(-height // rows)
    panels = None if width is None else -(-width // columns)
    is_copied = not is_read_in_rows(sch, product, rows, lanes)
    shared, by_columns, is_within = 1, False, False
    if tiles is not None:
        shared = tiles_of_task(tiles, rows, panels) if is_copied else 1
        by_columns = panels is not None and panels >= TASKS and is_of_one_matrix(sch, product)
        is_within = by_columns or (tiles <= 2 * shared and is_of_own_matrices(sch, product))
    is_apart = (panels is None or panels > 2) and is_crowded(sch, product, rows)
    padding = pad(sch, product, rows * shared, columns)
    of_columns = None
    if is_copied:
        of_columns = Panels.of(sch, product, product.other, product.column, columns)
    of_rows = None
    if is_apart:
        of_rows = Panels.of(sch, product, row_operand(sch, product), product.row, rows)
    inline_padding(sch, product, padding)
    if of_columns is not None and not is_within:
        of_columns.made_before(sch)
    if of_rows is not None:
        of_rows.made_before(sch)
    store = storing(sch, product, epilogue, padding.copied)
    tasks, step = _tile_loops(sch, product, store, (shared, rows, columns), by_columns)
    if height is not None and width is not None:
        moved = rows if of_rows is None else 0
        mark_tiles(sch, step, (height, moved), (width, columns), lanes, is_copied)
    sch.compute_at(product.info.block_rv, step, preserve_unit_loops=True)
    if of_columns is not None and is_within:
        of_columns.made_within(sch, tasks)


def _other_axes(sch: s_tir.Schedule, product: Contraction) -> list[tirx.Var]:
    """The axes of results that are neither rows nor columns."""
    axes = zip(sch.get(product.info.block_rv).iter_vars, product.info.iters)
    return [
        axis.var
        for n, (axis, it) in enumerate(axes)
        if it.kind == "S" and n not in (product.row, product.column) and not is_one(it.dom)
    ]


def _column_indices(sch: s_tir.Schedule, product: Contraction) -> list[ir.Expr]:
    """Where the operand with the columns is read."""
    return [part.min for part in sch.get(product.info.block_rv).reads[product.other].region]


def is_of_one_matrix(sch: s_tir.Schedule, product: Contraction) -> bool:
    """Whether several matrices are multiplied by the same one."""
    others, indices = _other_axes(sch, product), _column_indices(sch, product)
    return bool(others) and not any(uses(index, var) for index in indices for var in others)


def is_of_own_matrices(sch: s_tir.Schedule, product: Contraction) -> bool:
    """Whether each matrix, or the only one, is multiplied by another."""
    others, indices = _other_axes(sch, product), _column_indices(sch, product)
    return all(any(uses(index, var) for index in indices) for var in others)


def is_read_in_rows(sch: s_tir.Schedule, product: Contraction, rows: int, lanes: int) -> bool:
    """Whether tiles of so many rows take the columns from where they lie side by side.

    Not where these are several parts of a register: of a copy that is filled up they are one.
    """
    width = product.width
    if product.height is None or width is None or not lies_along(sch, product):
        return False
    if width < lanes and width & (width - 1):
        return False
    if product.height <= rows or product.depth is None:
        return product.height <= rows
    source = sch.get(product.info.block_rv).reads[product.other].source
    return product.depth * width * element_bytes(source) <= SMALL


def tiles_of_task(tiles: int, rows: int, panels: int | None) -> int:
    """How many tiles a task computes one below the other.

    Args:
        tiles: how many there are.
        rows: of each.
        panels: how many there are side by side; None where a call tells.
    """
    tasks = -(-tiles // TASK_TILES)
    if tasks == 1 and panels is not None and panels < TASKS and tiles * rows >= 2 * TASK_ROWS:
        tasks = 2
    return -(-tiles // tasks)


def tile_sizes(
    sch: s_tir.Schedule, product: Contraction, registers: Registers, costs: Costs
) -> tuple[int, int]:
    """Rows and columns of a tile of results."""
    height, width = product.height, product.width
    if is_matrix_product(sch, product):
        # Padded to whole tiles: any size will do.
        rows, columns = min(ROWS_OF_ANY, registers.rows), registers.columns
        if width is not None:
            columns = min(-(-width // registers.lanes) * registers.lanes, columns)
        if height is not None:
            rows = rows_of_tile(sch, product, height, registers.rows, costs)
        if width is not None and is_read_in_rows(sch, product, rows, registers.lanes):
            columns = registers.columns_beside(rows, width)
        return rows, columns
    if height is None or width is None:
        return 1, 1
    columns = largest_divisor(width, registers.columns)
    most = registers.rows
    if columns < registers.lanes // 2 and width <= 2 * registers.columns:
        # No good divisor, but all columns fit: in odd vectors, that take twice the registers.
        return largest_divisor(height, most // 2), width
    return largest_divisor(height, most), columns


def rows_of_tile(
    sch: s_tir.Schedule, product: Contraction, height: int, most: int, costs: Costs
) -> int:
    """The rows of a tile, of which the last is read again where tiles are not whole.

    Those are the best that read the fewest again, keep the vector units busy, and are not many
    enough to need a copy.
    """
    depth = product.depth

    def cost(rows: int) -> float:
        padded = -(-height // rows) * rows
        if depth is not None and depth < SHORT:
            return padded
        copied = COPIED_ROWS if is_crowded(sch, product, rows) else 1
        return padded * costs.waiting(rows) * copied

    return min(range(min(most, height), 0, -1), key=cost)


def is_matrix_product(sch: s_tir.Schedule, product: Contraction) -> bool:
    """Whether every index is an axis (or constant), not a sum of axes as in a convolution."""
    loads = nodes(sch.get(product.info.block_rv).body, ir.TensorLoad)
    return all(
        isinstance(index, tirx.Var | tirx.IntImm) for load in loads for index in load.indices
    )


def _tile_loops(
    sch: s_tir.Schedule,
    product: Contraction,
    store: s_tir.schedule.SBlockRV,
    sizes: tuple[int, int, int],
    by_columns: bool = False,
) -> tuple[s_tir.schedule.LoopRV, s_tir.schedule.LoopRV]:
    """Store results tile by tile, in parallel tasks: the loop over tasks, and that over tiles.

    Args:
        sch: the kernel.
        product: what is stored.
        store: the block that stores it.
        sizes: the tiles of a task, and the rows and columns of a tile.
        by_columns: whether a task has all rows.
    """
    shared, rows, columns = sizes
    tasks, (step, i), j = in_tasks(sch, product, store, [shared, rows], columns, by_columns)
    mark_tile(sch, i, j)
    store_in_vectors(sch, store, i, j)
    return tasks, step


def _accumulate(sch: s_tir.Schedule, product: Contraction) -> None:
    """Sum up a tile: for each step along the reduced axes, every row by a vector of columns."""
    block = product.info.block_rv
    kinds = product.info.dom_kind()
    reduced = [loop_of(sch, block, axis) for axis, kind in enumerate(kinds) if kind == "R"]
    inner = sch.get_loops(block)[-len(kinds) :]  # One for each axis: a unit loop where it is 1.
    i, j = inner[product.row], inner[product.column]
    sch.reorder(*reduced, i, j)
    mark_tile(sch, i, j)
    sch.unroll(i)
    sch.vectorize(j)
    sch.decompose_reduction(block, reduced[0])
