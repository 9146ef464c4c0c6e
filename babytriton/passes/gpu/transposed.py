"""Elementwise kernels on the GPU that read across the lines of memory that they write along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import inline_cheap, is_one, is_pointwise, open_kernel
from babytriton.passes.gpu.accesses import loads_made
from babytriton.passes.gpu.extents import Axis, Extent, parts, product, split
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    INDEX,
    WARP,
    as_index,
    below,
    both,
    each,
    guarded,
    item_bytes,
    launched,
    named,
    number,
    shared,
    told,
    written_out,
)

# Rows of a tile that the threads of a block take at once.
ROWS = 8

# Elements from one row of a tile to the next in shared memory: one more than in the tile, so that
# a column of it lies in as many banks as a row.
STRIDE = WARP + 1

# Bytes of shared memory that every GPU gives a thread block.
SHARED = 48 << 10

# Thread blocks along y and along z, at most.
GRID = 65535


class Transposed(ScheduleRule):
    """Takes one pointwise block that reads something along another axis than its last.

    Gives each thread block a square tile. What is read across is first read along its own lines
    into shared memory. Stands aside where one of the two axes is short.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        if len(infos) != 1 or not is_pointwise(sch, infos[0]):
            return None
        program = Program.of(sch, infos, [])
        across = None if program is None else axis_across(program)
        if program is None or across is None:
            return None
        return written_out(sch.mod["main"], tiled(program, across))


def axis_across(program: Program) -> int | None:
    """The axis, not the last, that is the last of what the block reads; None if none is."""
    if len(program.elements) < 2:
        return None
    *others, (last, width) = program.elements
    for load in loads_made(program.blocks[0].value):
        for axis, (var, extent) in enumerate(others):
            if _is_long(extent) and _is_long(width) and is_across(load, var, last):
                return axis
    return None


def _is_long(extent: Extent) -> bool:
    """Whether an axis has enough for a tile; one of a size that a call tells may well have."""
    return not isinstance(extent, int) or extent >= ROWS


def _tile_bytes(loads: list[ir.TensorLoad]) -> int:
    return sum(WARP * STRIDE * item_bytes(str(load.source.ty.dtype)) for load in loads)


def is_across(load: ir.TensorLoad, own: tirx.Var, last: tirx.Var) -> bool:
    """Whether a load goes along its lines with one variable, and from line to line with another."""
    *lines, place = load.indices
    return (
        place.same_as(own)
        and any(index.same_as(last) for index in lines)
        and not nodes(list(load.indices), ir.TensorLoad)
    )


def tiled(program: Program, across: int) -> Statements:
    """The kernel in square tiles of the last axis and another, after what it is told."""
    block = program.blocks[0]
    (column, width), (row, height) = program.elements[-1], program.elements[across]
    others: list[Axis] = [axis for n, axis in enumerate(program.elements[:-1]) if n != across]
    found: list[ir.TensorLoad] = []
    for load in loads_made(block.value):
        is_new = not any(tvm_ffi.structural_equal(load, other) for other in found)
        if is_new and is_across(load, row, column) and _tile_bytes([*found, load]) <= SHARED:
            found.append(load)
    tiles = [
        shared(WARP * STRIDE, str(load.source.ty.dtype), f"{load.source.name}_tile")
        for load in found
    ]
    grid = Grid(parts(width, WARP), parts(height, WARP), product(n for _, n in others))

    def thread(ids: dict[str, ir.Expr]) -> Statements:
        x, y = ids["threadIdx.x"], ids["threadIdx.y"]
        found_tile, (tile_column, tile_row, layer) = grid.tile(ids)
        outside = split(layer, others)
        first_row, first_column = tile_row * WARP, tile_column * WARP

        def at(expr: ir.Expr, own_row: ir.Expr, own_column: ir.Expr) -> ir.Expr:
            values = {**outside, row: own_row, column: own_column}
            return tvm_ffi.structural_map(expr, (ir.Var, lambda var: values.get(var, var)))

        def inside(
            own_row: ir.Expr,
            own_column: ir.Expr,
            body: Callable[[ir.Expr, ir.Expr], Statements],
        ) -> Statements:
            own_row, of_row = named("row", own_row, height)
            own_column, of_column = named("column", own_column, width)
            is_inside = both(below(own_row, height, WARP), below(own_column, width, WARP))
            return [*of_row, *of_column, *guarded(is_inside, body(own_row, own_column))]

        def read(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y

            def put(*place: ir.Expr) -> Statements:
                return [
                    tirx.BufferStore(
                        tile,
                        tirx.BufferLoad(load.source, [at(i, *place) for i in load.indices]),
                        [line * number(STRIDE) + x],
                    )
                    for load, tile in zip(found, tiles)
                ]

            return inside(first_row + x, first_column + line, put)

        def write(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y

            def of_load(load: ir.TensorLoad) -> ir.Expr:
                for other, tile in zip(found, tiles):
                    if tvm_ffi.structural_equal(load, other):
                        return tirx.BufferLoad(tile, [x * number(STRIDE) + line])
                return load

            def put(*place: ir.Expr) -> Statements:
                value = at(tvm_ffi.structural_map(block.value, (ir.TensorLoad, of_load)), *place)
                indices = [at(index, *place) for index in block.store.indices]
                return [tirx.BufferStore(block.buffer, value, indices)]

            return inside(first_row + line, first_column + x, put)

        steps = WARP // ROWS
        body = [*each("step", steps, read), *each("step", steps, write)]
        return [*map(tirx.AllocBuffer, tiles), *found_tile, *body]

    extents = {**grid.extents, "threadIdx.y": ROWS, "threadIdx.x": WARP}
    return [*grid.before, launched(extents, thread)]


class Grid:
    """The thread blocks of a kernel in tiles: along x, y and z, or one after the other along x.

    Along y and z a GPU does not take as many as a call may tell.

    Args:
        columns: how many tiles lie side by side.
        rows: how many of these lie below each other.
        layers: how many of these there are.
    """

    def __init__(self, columns: Extent, rows: Extent, layers: Extent) -> None:
        self.before: Statements = []
        self._axes: list[Axis] = []
        self.extents = {"blockIdx.z": layers, "blockIdx.y": rows, "blockIdx.x": columns}
        if is_one(layers):
            del self.extents["blockIdx.z"]
        if all(isinstance(count, int) and count <= GRID for count in (rows, layers)):
            return
        columns, first = told("tile_columns", columns)
        rows, second = told("tile_rows", rows)
        self.before = [*first, *([] if is_one(layers) else second)]
        for name, count in (("layer", layers), ("tile_row", rows), ("tile_column", columns)):
            if not is_one(count):
                self._axes.append((tirx.Var(name, INDEX), as_index(count)))
        self.extents = {"blockIdx.x": product(self.extents.values())}

    def tile(self, ids: dict[str, ir.Expr]) -> tuple[Statements, Sequence[ir.Expr]]:
        """The column, the row and the layer of a thread block's tile, after what computes them."""
        if not self._axes:
            return [], (ids["blockIdx.x"], ids["blockIdx.y"], ids.get("blockIdx.z", number(0)))
        found = split(as_index(ids["blockIdx.x"]), self._axes)
        places = {axis.name: tirx.Cast("int64", axis) for axis in found}
        named = [tirx.Bind(axis, place) for axis, place in found.items()]
        return named, [places.get(x, number(0)) for x in ("tile_column", "tile_row", "layer")]
