"""Matrix products and convolutions on the CPU."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    inline_cheap,
    is_at_least,
    is_one,
    is_output,
    is_pointwise,
    loads,
    loop_of,
    nodes,
    open_kernel,
    same_extents,
    uses,
    written,
)
from babytriton.passes.contractions import Contraction, contraction, factors
from babytriton.passes.cpu.caches import width
from babytriton.passes.cpu.costs import Costs
from babytriton.passes.cpu.dots import is_of_dots, tile_of_dots
from babytriton.passes.cpu.edges import mark_tile, mark_tiles
from babytriton.passes.cpu.elementwise import spread
from babytriton.passes.cpu.few_rows import is_of_few_rows, tile_few_rows
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
from babytriton.passes.cpu.tasks import in_tasks, store_in_vectors
from babytriton.passes.nests import is_point, pointwise_nests, stores_at

# At most so many tiles one below the other share a panel of columns while it is in cache.
TASK_TILES = 44

# With fewer tasks, threads have uneven shares of them; of fewer rows, copies of panels are too much
# of the work of a task.
TASKS, TASK_ROWS = 16, 48

# Of an operand of so many bytes, a copy of its columns takes longer than it saves.
SMALL = 1 << 18

# For the sums of fewer products, it makes no difference how long these take.
SHORT = 16

# Below so many products, one after the other, tiles cost more than they save.
TILED = 1 << 14

# To copy the operand with the rows makes a product take so much longer.
COPIED_ROWS = 1.05

# Rows of a tile where a call tells how many there are of all.
ROWS_OF_ANY = 8


class Matmul(ScheduleRule):
    """Takes one product summed over an axis: matmul, linear, einsum, convolutions.

    Gives register tiles of results in parallel tasks, and pointwise blocks that follow within
    the tile. Where no tile size divides an axis, tiles go over its end: to rows that are read again
    and columns that a copy is filled up with (matrix products); convolutions get smaller tiles.
    Stands aside where no axis belongs to one operand alone (a matrix by a vector is a row sum or a
    column sum), and for convolutions of symbolic sizes.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        found = [position for position, info in enumerate(infos) if info.is_reduction()]
        if len(found) != 1:
            return None
        product = contraction(sch, infos[found[0]])
        before, after = infos[: found[0]], infos[found[0] + 1 :]
        if product is None or not all(is_pointwise(sch, info) for info in before + after):
            return None
        # Operands are read many times: what makes them is computed once, before. Only where they
        # lie makes no difference.
        before = [info for info in before if not inline_transpose(sch, info, product)]
        product = contraction(sch, product.info)
        if product is None:
            return None
        before = inline_cheap(sch, before, keep_for=[product.info])
        after = inline_cheap(sch, after)
        for nest in pointwise_nests(sch, before):
            spread(sch, nest)
        epilogue, costs = None, Costs.of(target)
        if after and is_read_once(sch, product.info, after[0]):
            epilogue, *after = after
        if not is_at_least(product.info, TILED):
            row_after_row(sch, product)
            after = [epilogue, *after] if epilogue else after
        elif is_of_dots(sch, product, costs):
            tile_of_dots(sch, product, epilogue, registers(sch, product, target))
        else:
            room = registers(sch, product, target)
            sizes = tile_sizes(sch, product, room, costs)
            if is_matrix_product(sch, product) and is_of_few_rows(sch, product, sizes[0]):
                tile_few_rows(sch, product, epilogue, sizes)
            elif not tile(sch, product, epilogue, sizes, room.lanes):
                return None
        for nest in pointwise_nests(sch, after):
            spread(sch, nest)
        return sch


def inline_transpose(sch: s_tir.Schedule, info: SBlockInfo, product: Contraction) -> bool:
    """Read what a block only puts in another order where it lies; whether it is such a block.

    Unless that is the other operand: a product of a tensor by itself would be no contraction.
    """
    value = sch.get(info.block_rv).body.value
    is_own = isinstance(value, ir.TensorLoad) and not is_output(sch, info)
    if not is_own or not all(isinstance(index, tirx.Var) for index in value.indices):
        return False
    operands = factors(sch.get(product.info.block_rv).body)
    if operands is None or any(load.source.same_as(value.source) for load in operands):
        return False
    sch.compute_inline(info.block_rv)
    return True


def registers(sch: s_tir.Schedule, product: Contraction, target: Target) -> Registers:
    """The registers that the product's sums are held in."""
    return Registers.of(target, str(sch.get(product.info.block_rv).body.value.ty.dtype))


def is_read_once(sch: s_tir.Schedule, info: SBlockInfo, reader: SBlockInfo) -> bool:
    """Whether `reader` alone needs the sums of a block, each at its own point."""
    if is_output(sch, info) or len(sch.get_consumers(info.block_rv)) != 1:
        return False
    own, other = (sch.get(block.block_rv).iter_vars for block in (info, reader))
    place = [axis.var for axis, it in zip(own, info.iters) if it.kind == "S"]
    sizes = [it.dom for it in info.iters if it.kind == "S"]
    point = [axis.var for axis in other]
    return (
        same_extents(sizes, reader.dom())
        and stores_at(sch, info, place)
        and stores_at(sch, reader, point)
        and all(
            is_point(load.indices, point)
            for load in loads(sch, reader.block_rv, written(sch, info))
        )
    )


def row_after_row(sch: s_tir.Schedule, product: Contraction) -> None:
    """Add up whole rows of results, a multiple of a row of the other operand at a time."""
    block, kinds = product.info.block_rv, product.info.dom_kind()
    loops = sch.get_loops(block)
    reduced = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    outer = [
        loop
        for axis, (loop, kind) in enumerate(zip(loops, kinds))
        if kind == "S" and axis != product.column
    ]
    sch.reorder(*outer, *reduced, loops[product.column])
    sch.decompose_reduction(block, reduced[0])


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
    block = product.info.block_rv
    rows, columns = sizes
    if rows * columns == 1:
        return False
    tiles = None if product.height is None else -(-product.height // rows)
    shared = largest_divisor(tiles, TASK_TILES) if tiles is not None else 1
    store = None if epilogue is None else epilogue.block_rv
    packed, is_unpacked, is_of_one_task, are_copied = None, False, False, False
    by_columns = False
    if is_matrix_product(sch, product):
        if tiles is not None:
            panels = product.width and -(-product.width // columns)
            is_unpacked = is_read_in_rows(sch, product, rows)
            shared = 1 if is_unpacked else tiles_of_task(tiles, rows, panels)
            by_columns = has_all_rows(sch, product, panels)
            is_of_one_task = by_columns or (tiles <= 2 * shared and has_all_but_rows(sch, product))
        copied, fillers = pad(sch, product, rows * shared, columns)
        if copied is not None and store is not None:
            sch.compute_inline(copied)
        store = store or copied
        if not is_unpacked:
            packed = Panels.of(sch, product, product.other, product.column, columns)
        is_again = product.width is None or product.width > 2 * columns
        are_copied = is_again and is_crowded(sch, product, rows)
        operands = [] if packed is None or is_of_one_task else [packed]
        if are_copied:
            by_rows = Panels.of(sch, product, row_operand(sch, product), product.row, rows)
            operands.append(by_rows)
        inline_padding(sch, product, fillers)
        for operand in operands:
            operand.made_before(sch)
    if store is None:
        store = sch.cache_write(block, 0, "local")
    else:
        sch.set_scope(block, 0, "local")
    tasks, step = tile_loops(sch, product, store, (shared, rows, columns), by_columns)
    if product.height is not None and product.width is not None:
        beside = (product.height, 0 if are_copied else rows), (product.width, columns)
        mark_tiles(sch, step, *beside, lanes, packed is not None)
    sch.compute_at(block, step, preserve_unit_loops=True)
    if packed is not None and is_of_one_task:
        packed.made_within(sch, tasks)
    accumulate(sch, product)
    return True


def has_all_rows(sch: s_tir.Schedule, product: Contraction, panels: int | None) -> bool:
    """Whether a task has all rows, of several matrices that are multiplied by the same one."""
    block = sch.get(product.info.block_rv)
    region = block.reads[product.other].region
    others = [
        it.var
        for axis, (it, info) in enumerate(zip(block.iter_vars, product.info.iters))
        if info.kind == "S" and axis not in (product.row, product.column)
    ]
    is_one = not any(uses(part.min, var) for part in region for var in others)
    return bool(others) and is_one and panels is not None and panels >= TASKS


def has_all_but_rows(sch: s_tir.Schedule, product: Contraction) -> bool:
    """Whether the operand that has the columns has a matrix for each of the other one."""
    block = sch.get(product.info.block_rv)
    region = block.reads[product.other].region
    return all(
        axis == product.row or is_one(it.dom) or any(uses(part.min, var) for part in region)
        for axis, (it, var) in enumerate(zip(product.info.iters, [v.var for v in block.iter_vars]))
    )


def is_read_in_rows(sch: s_tir.Schedule, product: Contraction, rows: int) -> bool:
    """Whether tiles of so many rows take the columns from where they lie side by side."""
    if product.height is None or product.width is None or not lies_along(sch, product):
        return False
    if product.height <= rows or product.depth is None:
        return product.height <= rows
    source = sch.get(product.info.block_rv).reads[product.other].source
    return product.depth * product.width * width(source) <= SMALL


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
        if width is not None and is_read_in_rows(sch, product, rows):
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


def tile_loops(
    sch: s_tir.Schedule,
    product: Contraction,
    store: s_tir.schedule.SBlockRV,
    sizes: tuple[int, int, int],
    by_columns: bool,
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


def accumulate(sch: s_tir.Schedule, product: Contraction) -> None:
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
