"""Matrix products of rows by rows on the CPU, as `x @ w.T` of a linear layer.

What is summed up lies side by side in both operands: vectors of both are multiplied as they are,
and neither is copied. A tile of results is so many sums in vector lanes at once.
"""

from __future__ import annotations

from itertools import product as pairs

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.contractions import Contraction, factors
from babytriton.passes.cpu.costs import Costs
from babytriton.passes.cpu.lanes import lanes_of_many
from babytriton.passes.cpu.operands import inline_padding, pad
from babytriton.passes.cpu.registers import Registers
from babytriton.passes.cpu.tasks import in_tasks, storing
from babytriton.passes.statements import at_step, sequence, statements, with_parts

# Marks loops whose steps are taken side by side, in each step of the loop inside of them.
_JAM = "babytriton.jam"

# Numbers to add up: of fewer, adding up the lanes takes longer than a copy of an operand.
_SHORTEST = 128

# Columns of a tile, which each element of the rows is multiplied by.
_COLUMNS = 4

# Columns and tiles of a task, whose results lie on the stack until they are stored.
_TASK_COLUMNS, _TASK_TILES = 64, 16


def is_of_dots(sch: s_tir.Schedule, product: Contraction, costs: Costs) -> bool:
    """Whether what is summed up lies side by side, and too few rows need it for a copy to pay."""
    info, block = product.info, sch.get(product.info.block_rv)
    summed = [axis for axis, it in enumerate(info.iters) if it.kind == "R"]
    operands = factors(block.body)
    if len(summed) != 1 or operands is None:
        return False
    variable, length = block.iter_vars[summed[0]].var, info.iters[summed[0]].dom
    if not all(load.indices[-1].same_as(variable) for load in operands):
        return False
    if product.width is None or not isinstance(length, int) or length < _SHORTEST:
        return False
    return product.height is None or costs.prefers_dots(product.height, length)


def tile_of_dots(
    sch: s_tir.Schedule, product: Contraction, epilogue: SBlockInfo | None, registers: Registers
) -> None:
    """Compute tiles of results, each of which is summed up in lanes, and store them by tasks."""
    info, block = product.info, product.info.block_rv
    lanes = lanes_of_many(str(sch.get(block).body.value.ty.dtype))
    room = registers.count // max(1, lanes // registers.lanes)
    width = int(info.iters[product.column].dom)
    rows, columns = tile_size(product.height, width, room)
    shared = 1 if product.height is None else even_share(-(-product.height // rows), _TASK_TILES)
    beside = even_share(-(-width // columns), _TASK_COLUMNS // columns)
    padding = pad(sch, product, rows * shared, columns * beside)
    inline_padding(sch, product, padding)
    store = storing(sch, product, epilogue, padding.copied)
    tasks, _, _ = in_tasks(sch, product, store, [rows * shared], beside * columns)
    sch.compute_at(block, tasks, preserve_unit_loops=True)
    inner = sch.get_loops(block)[-len(info.iters) :]
    summed = inner[info.dom_kind().index("R")]
    step, i = sch.split(inner[product.row], [None, rows])
    tile, j = sch.split(inner[product.column], [None, columns])
    sch.reorder(tile, step, i, j, summed)
    sch.decompose_reduction(block, tile)
    for loop in (i, j):
        sch.annotate(loop, _JAM, 1)


def tile_size(height: int | None, width: int, room: int) -> tuple[int, int]:
    """Rows and columns of a tile.

    Args:
        height: how many rows there are; None where a call tells.
        width: how many columns.
        room: how many sums or numbers of operands, with all their lanes, the registers hold.
    """

    def cost(tile: tuple[int, int]) -> float:
        """Products of a step, and vectors to load for them, of all columns."""
        rows, columns = tile
        tiles = 1 / rows if height is None else -(-height // rows)
        return tiles * -(-width // columns) * (rows * columns + rows + columns)

    tiles = [
        (rows, columns)
        for columns in range(1, min(_COLUMNS, width) + 1)
        for rows in range(1, room // columns + 1)
        if rows * columns + columns + 1 <= room and (height is None or rows <= height)
    ]
    return min(tiles, key=cost)


def even_share(tiles: int, most: int) -> int:
    """How many tiles a task has along one side, so that all have about as many."""
    return -(-tiles // -(-tiles // most))


def jammed(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with the steps of marked loops side by side."""
    return tvm_ffi.structural_map(stmt, (tirx.For, _jammed), order="pre")


def _jammed(loop: tirx.For) -> tirx.Stmt:
    marked = []
    inside: tirx.Stmt = loop
    while isinstance(inside, tirx.For) and _JAM in inside.annotations:
        marked.append(inside)
        inside = inside.body
    if not marked or not isinstance(inside, tirx.For):
        return loop
    done = []
    for steps in pairs(*(range(int(outer.extent)) for outer in marked)):
        body: tirx.Stmt = inside.body
        for outer, step in zip(marked, steps):
            place = outer.min + tirx.const(step, outer.loop_var.ty.dtype)
            body = at_step(body, outer.loop_var, place)
        done += statements(body)
    return with_parts(inside, sequence(done))
