"""A few rows that read the same numbers, such as those of a matrix with few rows by a large one.

The same threads take all of them: what these rows share is read once, and kept in registers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.writing import number

# Rows that threads may take side by side; and how many there must be besides, to fill a GPU.
FEW, MANY = 4, 1024


def side_by_side(program: Program) -> Program:
    """The program with blocks for each of a few rows, if they share much of what they read."""
    for place, (variable, extent) in enumerate(program.rows):
        others = [n for _, n in (*program.rows[:place], *program.rows[place + 1 :])]
        if not isinstance(extent, int) or not 1 < extent <= FEW:
            continue
        if not _is_many(others) or not _is_shared(program, variable) or _reads_results(program):
            continue
        blocks = [
            block for step in range(extent) for block in _at_row(program.blocks, variable, step)
        ]
        rows = (*program.rows[:place], *program.rows[place + 1 :])
        return replace(program, rows=rows, blocks=tuple(blocks))
    return program


def _is_many(extents: list[int | ir.Expr]) -> bool:
    known = [n for n in extents if isinstance(n, int)]
    return len(known) == len(extents) and math.prod(known) >= MANY


def _is_shared(program: Program, variable: tirx.Var) -> bool:
    """Whether what all steps of an axis of rows read is as large as what each of them reads.

    What all rows read, as the weights of a norm, is in the caches.
    """
    places = [access.place for _, access in program.accesses() if access.moves]
    others = [var for var, _ in program.rows if not var.same_as(variable)]
    is_one = any(
        not uses(place, variable) and all(uses(place, other) for other in others)
        for place in places
    )
    return is_one and any(uses(place, variable) for place in places)


def _reads_results(program: Program) -> bool:
    """Whether a block reads what another stores, which is in one place for all rows."""
    stored = {block.buffer for block in program.blocks if block.is_result}
    loads = [load for block in program.blocks for load in nodes(block.value, ir.TensorLoad)]
    return any(load.source in stored for load in loads)


def _at_row(blocks: tuple[Block, ...], variable: tirx.Var, step: int) -> list[Block]:
    """The blocks at one step of an axis of rows, with memory of its own for what they pass on."""
    own = {
        block.buffer: tirx.Var(block.buffer.name, block.buffer.ty)
        for block in blocks
        if not block.is_result
    }

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(own.get(node.source, node.source), list(node.indices))

    def at_step(store: tirx.BufferStore) -> tirx.BufferStore:
        at = tvm_ffi.structural_map(
            store, [(ir.Var, lambda var: number(step) if var.same_as(variable) else var)]
        )
        value = tvm_ffi.structural_map(at.value, (ir.TensorLoad, load))
        return tirx.BufferStore(own.get(store.buffer, store.buffer), value, list(at.indices))

    return [replace(block, store=at_step(block.store)) for block in blocks]
