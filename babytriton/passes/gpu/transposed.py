"""Elementwise kernels on the GPU that read across the lines of memory that they write along."""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_pointwise, nodes, open_kernel
from babytriton.passes.gpu.program import Axis, Program, loads_made, product, split
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    WARP,
    both,
    each,
    guarded,
    item_bytes,
    launched,
    number,
    shared,
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
    into shared memory. Stands aside where both axes are short, and for sizes that a call tells.
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
        if program is None or across is None or not fits_in_grid(program, across):
            return None
        return written_out(sch.mod["main"], [tiled(program, across)])


def axis_across(program: Program) -> int | None:
    """The axis, not the last, that is the last of what the block reads; None if none is."""
    if len(program.elements) < 2 or not isinstance(program.length, int):
        return None
    *others, (_, width) = program.elements
    value = program.blocks[0].value
    for load in loads_made(value):
        for axis, (var, extent) in enumerate(others):
            is_long = isinstance(extent, int) and min(extent, int(width)) >= ROWS
            if is_long and is_across(load, var, program.elements[-1][0]):
                return axis
    return None


def _tile_bytes(loads: list[ir.TensorLoad]) -> int:
    return sum(WARP * STRIDE * item_bytes(str(load.source.ty.dtype)) for load in loads)


def fits_in_grid(program: Program, across: int) -> bool:
    """Whether there are not more tiles along y and z than a GPU takes."""
    sizes = [int(extent) for _, extent in program.elements]
    rows = -(-sizes.pop(across) // WARP)
    return max(rows, math.prod(sizes[:-1])) <= GRID


def is_across(load: ir.TensorLoad, own: tirx.Var, last: tirx.Var) -> bool:
    """Whether a load goes along its lines with one variable, and from line to line with another."""
    *lines, place = load.indices
    return (
        place.same_as(own)
        and any(index.same_as(last) for index in lines)
        and not nodes(list(load.indices), ir.TensorLoad)
    )


def tiled(program: Program, across: int) -> tirx.Stmt:
    """The kernel in square tiles of the last axis and another."""
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

    def thread(ids: dict[str, ir.Expr]) -> Statements:
        x, y = ids["threadIdx.x"], ids["threadIdx.y"]
        outside = split(ids.get("blockIdx.z", number(0)), others)
        first_row, first_column = ids["blockIdx.y"] * WARP, ids["blockIdx.x"] * WARP

        def at(expr: ir.Expr, own_row: ir.Expr, own_column: ir.Expr) -> ir.Expr:
            values = {**outside, row: own_row, column: own_column}
            return tvm_ffi.structural_map(expr, (ir.Var, lambda var: values.get(var, var)))

        def inside(own_row: ir.Expr, own_column: ir.Expr) -> ir.Expr | None:
            return both(
                own_row < number(int(height)) if int(height) % WARP else None,
                own_column < number(int(width)) if int(width) % WARP else None,
            )

        def read(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y
            place = (first_row + x, first_column + line)
            puts = [
                tirx.BufferStore(
                    tile,
                    tirx.BufferLoad(load.source, [at(i, *place) for i in load.indices]),
                    [line * number(STRIDE) + x],
                )
                for load, tile in zip(found, tiles)
            ]
            return guarded(inside(*place), puts)

        def write(step: ir.Expr) -> Statements:
            line = step * number(ROWS) + y
            place = (first_row + line, first_column + x)

            def of_load(load: ir.TensorLoad) -> ir.Expr:
                for other, tile in zip(found, tiles):
                    if tvm_ffi.structural_equal(load, other):
                        return tirx.BufferLoad(tile, [x * number(STRIDE) + line])
                return load

            value = at(tvm_ffi.structural_map(block.value, (ir.TensorLoad, of_load)), *place)
            indices = [at(index, *place) for index in block.store.indices]
            return guarded(inside(*place), [tirx.BufferStore(block.buffer, value, indices)])

        steps = WARP // ROWS
        body = [*each("step", steps, read), *each("step", steps, write)]
        return [*map(tirx.AllocBuffer, tiles), *body]

    extents: dict[str, int | ir.Expr] = {}
    if others:
        extents["blockIdx.z"] = product(extent for _, extent in others)
    extents |= {"blockIdx.y": -(-int(height) // WARP), "blockIdx.x": -(-int(width) // WARP)}
    return launched({**extents, "threadIdx.y": ROWS, "threadIdx.x": WARP}, thread)
