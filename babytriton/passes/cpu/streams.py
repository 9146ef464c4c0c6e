"""Rows that are only added up, several at a time.

Sums wait for memory, and a processor fetches ahead in several places at once.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.cpu.lanes import adds_up
from babytriton.passes.intrinsics import FLOAT_FUNCTIONS, function_name
from babytriton.passes.statements import at_step, sequence, statements, with_parts

# Rows at a time: so many that there is no smaller group at the end, where sums of the same numbers
# would be others.
_ROWS = (4, 3, 2)
# How many rows there are at least, so that there are enough groups for the threads, and how long
# they are. (Each has a part of the lanes that it has by itself: longer ones would lose digits.)
_LEAST_ROWS, _LENGTHS = 256, range(256, 32769)


def side_by_side(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with such rows side by side, in the loops in parallel at its top."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([side_by_side(part) for part in statements(stmt)])
    if not isinstance(stmt, tirx.For) or stmt.kind != tirx.ForKind.PARALLEL or stmt.annotations:
        return stmt
    parts = statements(stmt.body)
    places = [n for n, part in enumerate(parts) if isinstance(part, tirx.For)]
    plain = (tirx.AllocBuffer, tirx.BufferStore, tirx.For)
    if len(places) != 1 or not all(isinstance(part, plain) for part in parts):
        return stmt
    (place,) = places
    loop = parts[place]
    if not isinstance(stmt.extent, tirx.IntImm) or not isinstance(loop.extent, tirx.IntImm):
        return stmt
    if int(stmt.extent) < _LEAST_ROWS or int(loop.extent) not in _LENGTHS:
        return stmt
    are_plain = loop.kind == tirx.ForKind.SERIAL and loop.step is None and stmt.step is None
    if not are_plain or uses(loop.min, stmt.loop_var) or not adds_up(loop):
        return stmt
    size = next((size for size in _ROWS if int(stmt.extent) % size == 0), 1)
    if size == 1 or not _waits_for_memory(loop):
        return stmt
    return _in_groups(stmt, parts, place, size)


def _waits_for_memory(loop: tirx.For) -> bool:
    """Whether it adds up one sum, of the numbers of one row, and computes little of them."""
    stores = statements(loop.body)
    if any(function_name(call) in FLOAT_FUNCTIONS for call in nodes(stores, ir.Call)):
        return False
    loads = [
        load
        for load in nodes(stores, ir.TensorLoad)
        if any(uses(index, loop.loop_var) for index in load.indices)
    ]
    return len(stores) == 1 and all(tvm_ffi.structural_equal(load, loads[0]) for load in loads)


def _in_groups(rows: tirx.For, parts: list[tirx.Stmt], place: int, size: int) -> tirx.For:
    """The loop over groups of so many rows."""
    variable = rows.loop_var
    dtype = variable.ty.dtype
    group, count = tirx.Var("group", dtype), tirx.const(size, dtype)
    first = rows.min + group * count
    each = [_copied(parts, variable, first + tirx.const(row, dtype)) for row in range(size)]
    loops = [own[place] for own in each]
    joint = [
        at_step(stmt, loop.loop_var, loops[0].loop_var)
        for loop in loops
        for stmt in statements(loop.body)
    ]
    before = [stmt for own in each for stmt in own[:place]]
    after = [stmt for own in each for stmt in own[place + 1 :]]
    whole = sequence([*before, with_parts(loops[0], sequence(joint)), *after])
    zero, groups = tirx.const(0, dtype), tirx.const(int(rows.extent) // size, dtype)
    return tirx.For(group, zero, groups, tirx.ForKind.PARALLEL, whole)


def _copied(parts: list[tirx.Stmt], variable: tirx.Var, row: ir.Expr) -> list[tirx.Stmt]:
    """The statements at one row, with locals and loops of their own."""
    own: dict[tirx.Var, ir.Expr] = {variable: row}
    for allocation in nodes(parts, tirx.AllocBuffer):
        buffer = allocation.buffer
        own[buffer] = ir.Var(buffer.name, buffer.ty)
    for loop in nodes(parts, tirx.For):
        own[loop.loop_var] = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    return [tvm_ffi.structural_map(part, (ir.Var, lambda var: own.get(var, var))) for part in parts]
