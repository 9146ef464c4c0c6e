"""Matrix products of few rows on the CPU, by an operand that is large.

To read that operand is most of the work. A tile takes a few numbers of each of its rows, which lie
far apart. Here tiles side by side take theirs of some rows, before the next rows are read; their
sums lie in memory meanwhile.
"""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.contractions import Contraction
from babytriton.passes.cpu.operands import inline_padding, largest_divisor, lies_along, pad
from babytriton.passes.cpu.tasks import in_tasks, store_in_vectors

# Rows that are read before the next ones, at least and at most: as many at each time.
_AHEAD = 16, 32

# Columns of a task, the first that fits; and how many tasks there must be for all threads.
_COLUMNS, _TASKS = (512, 256), 8

# Tiles one below the other; with more, sums take longer than what is read.
_TILES = 4

# Numbers of an operand that is large.
_LARGE = 1 << 18


def is_of_few_rows(sch: s_tir.Schedule, product: Contraction, rows: int) -> bool:
    """Whether a product is of two matrices, one of few rows, in tiles of so many."""
    height, width, depth = product.height, product.width, product.depth
    if product.info.dom_kind().count("S") > 2:
        return False
    if height is None or width is None or depth is None or height > _TILES * rows:
        return False
    is_large = width * depth >= _LARGE and lies_along(sch, product)
    return is_large and _columns(width) is not None and _rows_ahead(product) >= _AHEAD[0]


def _rows_ahead(product: Contraction) -> int:
    last = [it.dom for it in product.info.iters if it.kind == "R"][-1]
    return largest_divisor(int(last), _AHEAD[1])


def _columns(width: int) -> int | None:
    """How many columns a task has."""
    return next((n for n in _COLUMNS if width % n == 0 and width >= _TASKS * n), None)


def tile_few_rows(
    sch: s_tir.Schedule, product: Contraction, epilogue: SBlockInfo | None, tile: tuple[int, int]
) -> None:
    """Add up products of some rows of the operand, tile by tile, and then of the next ones.

    Args:
        sch: the kernel.
        product: is added up, of known sizes.
        epilogue: what stores it.
        tile: how many rows and columns a tile has.
    """
    block, kinds = product.info.block_rv, product.info.dom_kind()
    rows, columns = tile
    height = -(-int(product.info.iters[product.row].dom) // rows) * rows
    task = _columns(int(product.info.iters[product.column].dom))
    copied, fillers = pad(sch, product, height, columns)
    store = copied
    if epilogue is not None:
        store = epilogue.block_rv
        if copied is not None:
            sch.compute_inline(copied)
    inline_padding(sch, product, fillers)
    if store is None:
        store = sch.cache_write(block, 0, "local")
    else:
        sch.set_scope(block, 0, "local")
    tasks, (_, i), j = in_tasks(sch, product, store, [height // rows, rows], task or columns)
    _, j = sch.split(j, [None, columns])
    sch.compute_at(block, tasks, preserve_unit_loops=True)
    loops = sch.get_loops(block)[-len(kinds) :]
    *summed, last = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    ahead, last = sch.split(last, [None, _rows_ahead(product)])
    down, row = sch.split(loops[product.row], [None, rows])
    beside, column = sch.split(loops[product.column], [None, columns])
    sch.reorder(*summed, ahead, beside, down, last, row, column)
    sch.unroll(row)
    sch.vectorize(column)
    sch.decompose_reduction(block, (summed or [ahead])[0])
    store_in_vectors(sch, store, i, j)
