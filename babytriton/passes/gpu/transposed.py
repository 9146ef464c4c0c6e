"""Elementwise kernels on the GPU that read across the lines of memory that they write along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import inline_cheap, is_one, is_pointwise, open_kernel
from babytriton.passes.gpu.accesses import loads_made
from babytriton.passes.gpu.extents import Axis, Extent, at_least_one, parts, product, split
from babytriton.passes.gpu.products import BLOCKS
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    INDEX,
    WARP,
    as_index,
    below,
    both,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    local,
    named,
    number,
    shared,
    told,
    written_out,
)
from babytriton.passes.nests import offset

# Rows of a tile that the threads of a block take at once.
ROWS = 8

# Bytes that a thread reads and writes at once, where numbers are smaller: a bank of shared memory;
# and where they are as long.
WORD, PAIR = 4, 8

# Vectors from one row of a tile to the next in shared memory: one more than in the tile, so that
# a column of it lies in as many banks as a row.
STRIDE = WARP + 1

# Bytes of shared memory that every GPU gives a thread block.
SHARED = 48 << 10

# Thread blocks along y and along z, at most.
GRID = 65535


class Transposed(ScheduleRule):
    """Takes one pointwise block that reads something along another axis than its last.

    Gives each thread block a square tile. What is read across is first read along its own lines
    into shared memory. Of numbers of less than 4 bytes a thread reads and writes as many as these
    hold, and of 4 bytes two, where sizes allow it. Stands aside where one of the two axes is short.
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
        has_layers = target.kind.name != "webgpu"  # it takes the last axis for its first
        return written_out(sch.mod["main"], tiled(program, across, has_layers))


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


def _tile_bytes(loads: Sequence[ir.TensorLoad], unit: int) -> int:
    own = (item_bytes(str(load.source.ty.dtype)) for load in loads)
    return WARP * unit * STRIDE * unit * sum(own)


def is_across(load: ir.TensorLoad, own: tirx.Var, last: tirx.Var) -> bool:
    """Whether a load goes along its lines with one variable, and from line to line with another."""
    *lines, place = load.indices
    return (
        place.same_as(own)
        and any(index.same_as(last) for index in lines)
        and not nodes(list(load.indices), ir.TensorLoad)
    )


def _loads_across(program: Program, across: int) -> list[ir.TensorLoad]:
    """What the block reads along an axis, each once."""
    found: list[ir.TensorLoad] = []
    for load in loads_made(program.blocks[0].value):
        is_new = not any(tvm_ffi.structural_equal(load, other) for other in found)
        if is_new and is_across(load, program.elements[across][0], program.elements[-1][0]):
            found.append(load)
    return found


def _unit(program: Program, across: int, loads: Sequence[ir.TensorLoad]) -> int:
    """Elements that a thread reads and writes at once."""
    block = program.blocks[0]
    dtypes = [block.dtype, *(str(load.source.ty.dtype) for load in loads)]
    widest = max(map(item_bytes, dtypes))
    unit = max(1, (PAIR if widest == WORD else WORD) // widest)
    while unit > 1 and not _fits(program, across, loads, unit):
        unit //= 2
    return unit


def _fits(program: Program, across: int, loads: Sequence[ir.TensorLoad], unit: int) -> bool:
    """Whether so many elements are a vector on both sides, and whole tiles of them fill a GPU.

    As many as a call tells may well do so.
    """
    block, last, other = program.blocks[0], program.elements[-1], program.elements[across]
    side, points = WARP * unit, program.length
    if isinstance(points, int) and points < BLOCKS * side * side:
        return False
    if not all(isinstance(n, int) and n >= side and n % unit == 0 for _, n in (last, other)):
        return False
    rest = [axis for n, axis in enumerate(program.elements) if n != across]
    turned = replace(program, elements=(*rest, other))
    found = [(program.access(block, block.store), last)]
    found += [(turned.access(block, load), other) for load in loads]
    return _tile_bytes(loads, unit) <= SHARED and all(
        one is not None and not one.jumps and one.fits(unit, axis) for one, axis in found
    )


def tiled(program: Program, across: int, has_layers: bool = True) -> Statements:
    """The kernel in square tiles of the last axis and another, after what it is told."""
    block = program.blocks[0]
    (column, width), (row, height) = program.elements[-1], program.elements[across]
    others: list[Axis] = [axis for n, axis in enumerate(program.elements[:-1]) if n != across]
    found = _loads_across(program, across)
    unit = _unit(program, across, found)
    while _tile_bytes(found, unit) > SHARED:
        found.pop()
    side, pitch = WARP * unit, STRIDE * unit
    tiles = [
        shared(side * pitch, str(load.source.ty.dtype), f"{load.source.name}_tile")
        for load in found
    ]
    # What stands for a number of a tile until it is known which one it is.
    numbers = [tirx.Var(tile.name, tile.ty.dtype) for tile in tiles]
    layers = product(n for _, n in others)
    grid = Grid(parts(width, side), parts(height, side), layers, has_layers)

    def of_load(load: ir.TensorLoad) -> ir.Expr:
        same = (n for n, other in zip(numbers, found) if tvm_ffi.structural_equal(load, other))
        return next(same, load)

    value = tvm_ffi.structural_map(block.value, (ir.TensorLoad, of_load))
    line_of = replace(program, elements=(program.elements[-1],), blocks=(block.with_value(value),))
    writer = Writer(line_of, unit, unit)
    values = local(unit, block.dtype, f"{block.buffer.name}_vector")
    allocations = [*tiles, *([values] if unit > 1 else [])]

    def thread(ids: dict[str, ir.Expr]) -> Statements:
        x, y = ids["threadIdx.x"], ids["threadIdx.y"]
        found_tile, (tile_column, tile_row, layer) = grid.tile(ids)
        outside = split(layer, others)
        first_row, first_column = tile_row * side, tile_column * side

        def inside(
            own_row: ir.Expr,
            own_column: ir.Expr,
            body: Callable[[ir.Expr, ir.Expr], Statements],
        ) -> Statements:
            own_row, of_row = named("row", own_row, height)
            own_column, of_column = named("column", own_column, width)
            is_inside = both(below(own_row, height, side), below(own_column, width, side))
            values = {**outside, row: own_row, column: own_column}
            put = [
                tvm_ffi.structural_map(stmt, (ir.Var, lambda var: values.get(var, var)))
                for stmt in body(own_row, own_column)
            ]
            return [*of_row, *of_column, *guarded(is_inside, put)]

        def read(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y

            def of_part(part: ir.Expr) -> Statements:
                # Lines that a thread writes as a vector lie a warp's lines apart: so those that
                # a warp reads at once are in one bank each.
                place = (part * number(WARP) + line) * number(pitch) + x * number(unit)

                def put(*_: ir.Expr) -> Statements:
                    return [
                        stmt
                        for load, tile in zip(found, tiles)
                        for stmt in copy_vector(
                            unit, (tile, place), (load.source, offset(load.source, load.indices))
                        )
                    ]

                own_column = first_column + (line * number(unit) + part)
                return inside(first_row + x * number(unit), own_column, put)

            return each("part", unit, of_part)

        def write(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y

            def use(lane: ir.Expr, value: ir.Expr) -> Statements:
                place = (lane * number(WARP) + x) * number(pitch) + line
                own = {n: tirx.BufferLoad(tile, [place]) for n, tile in zip(numbers, tiles)}
                value = tvm_ffi.structural_map(value, (ir.Var, lambda var: own.get(var, var)))
                if unit > 1:
                    return [tirx.BufferStore(values, value, [lane])]
                return [tirx.BufferStore(block.buffer, value, list(block.store.indices))]

            def put(_: ir.Expr, own_column: ir.Expr) -> Statements:
                vector = Vector(own_column, number(0), unit)
                done = writer.elements(line_of.blocks[0], vector, use)
                if unit == 1:
                    return done
                place = offset(block.buffer, list(block.store.indices))
                return [*done, *copy_vector(unit, (block.buffer, place), (values, number(0)))]

            return inside(first_row + line, first_column + x * number(unit), put)

        body = [
            *each("step", WARP // ROWS, read),
            *each("step", side // ROWS, write),
        ]
        return [*map(tirx.AllocBuffer, [*allocations, *writer.allocations]), *found_tile, *body]

    extents = {**grid.extents, "threadIdx.y": ROWS, "threadIdx.x": WARP}
    return [*grid.before, launched(extents, thread)]


class Grid:
    """The thread blocks of a kernel in tiles: along x, y and z, or one after the other along x.

    Along y and z a GPU does not take as many as a call may tell.

    Args:
        columns: how many tiles lie side by side.
        rows: how many of these lie below each other.
        layers: how many of these there are.
        has_layers: whether a GPU has an axis for them.
    """

    def __init__(
        self, columns: Extent, rows: Extent, layers: Extent, has_layers: bool = True
    ) -> None:
        self.before: Statements = []
        self._axes: list[Axis] = []
        self.extents = {"blockIdx.z": layers, "blockIdx.y": rows, "blockIdx.x": columns}
        if is_one(layers):
            del self.extents["blockIdx.z"]
            has_layers = True
        if has_layers and all(isinstance(count, int) and count <= GRID for count in (rows, layers)):
            return
        # A block is launched also for a tensor without elements.
        columns, first = told("tile_columns", at_least_one(columns))
        rows, second = told("tile_rows", at_least_one(rows))
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
