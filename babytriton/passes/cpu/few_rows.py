"""Matrix products of few rows on the CPU, by an operand that is large.

To read that operand is most of the work. A tile takes a few numbers of each of its rows, which lie
far apart. Here tiles side by side take theirs of some rows, before the next rows are read; their
sums lie in memory meanwhile.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.contractions import Contraction
from babytriton.passes.cpu.operands import inline_padding, largest_divisor, lies_along, pad
from babytriton.passes.cpu.tasks import in_tasks, store_in_vectors, storing
from babytriton.passes.statements import sequence, with_parts, without_marks

# Rows that are read before the next ones, at least and at most: as many at each time.
_AHEAD = 16, 32

# Columns of a task, the first that fits; and how many tasks there must be for all threads.
_COLUMNS, _TASKS = (512, 256), 8

# Tiles one below the other; with more, sums take longer than what is read.
_TILES = 4

# Numbers of an operand that is large.
_LARGE = 1 << 19

# Marks loops in which the sums of a tile are in registers.
_SUMS = "babytriton.sums"


def is_of_few_rows(sch: s_tir.Schedule, product: Contraction, rows: int) -> bool:
    """Whether a product is of two matrices, one of few rows, in tiles of so many."""
    height, width, depth = product.height, product.width, product.depth
    if product.info.dom_kind().count("S") > 2:
        return False
    if height is None or width is None or depth is None or height > _TILES * rows:
        return False
    is_large = width * depth >= _LARGE and lies_along(sch, product)
    return is_large and _columns(width) > 0 and _rows_ahead(product) >= _AHEAD[0]


def _rows_ahead(product: Contraction) -> int:
    last = [it.dom for it in product.info.iters if it.kind == "R"][-1]
    return largest_divisor(int(last), _AHEAD[1])


def _columns(width: int) -> int:
    """How many columns a task has; 0 if there are none that fit."""
    return next((n for n in _COLUMNS if width % n == 0 and width >= _TASKS * n), 0)


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
    padding = pad(sch, product, height, columns)
    inline_padding(sch, product, padding)
    store = storing(sch, product, epilogue, padding.copied)
    tasks, (_, i), j = in_tasks(sch, product, store, [height // rows, rows], task)
    _, j = sch.split(j, [None, columns])
    sch.compute_at(block, tasks, preserve_unit_loops=True)
    loops = sch.get_loops(block)[-len(kinds) :]
    *summed, last = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    ahead, last = sch.split(last, [None, _rows_ahead(product)])
    down, row = sch.split(loops[product.row], [None, rows])
    beside, column = sch.split(loops[product.column], [None, columns])
    sch.reorder(*summed, ahead, beside, down, last, row, column)
    sch.annotate(last, _SUMS, 1)
    sch.unroll(row)
    sch.vectorize(column)
    sch.decompose_reduction(block, (summed or [ahead])[0])
    store_in_vectors(sch, store, i, j)


def sums_in_registers(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with the sums of a tile taken from memory before marked loops, and put back.

    LLVM does so by itself for some numbers of rows, and not for others.
    """
    return tvm_ffi.structural_map(stmt, (tirx.For, _with_own_sums))


def _with_own_sums(loop: tirx.For) -> tirx.Stmt:
    if _SUMS not in loop.annotations:
        return loop
    rows = loop.body
    columns = rows.body
    store = columns.body
    sums, indices = store.buffer, list(store.indices)
    shape = (rows.extent, columns.extent)
    own = tirx.decl_buffer(shape, str(sums.ty.dtype), "sums", scope="local")
    place = [rows.loop_var, columns.loop_var]

    def tile(buffer: tirx.Var, at: list[ir.Expr], value: ir.Expr) -> tirx.Stmt:
        """A store for each row and column, in loops of their own."""
        names = {var: tirx.Var(var.name, var.ty.dtype) for var in place}
        body = with_parts(rows, with_parts(columns, tirx.BufferStore(buffer, value, at)))
        return tvm_ffi.structural_map(body, (ir.Var, lambda var: names.get(var, var)))

    def mine(load: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(own, place) if load.source.same_as(sums) else load

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, mine))
    added = with_parts(rows, with_parts(columns, tirx.BufferStore(own, value, place)))
    summed = without_marks(with_parts(loop, added), _SUMS)
    taken = tile(own, place, tirx.BufferLoad(sums, indices))
    put_back = tile(sums, indices, tirx.BufferLoad(own, place))
    return sequence([tirx.AllocBuffer(own), taken, summed, put_back])
