"""Long sums of columns in float64, of which each few rows are summed up in float32 first.

To make each number wider takes as long as to add it, and half as many of the wider ones fit in a
vector: this is done to one row in `STEPS`.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.blocks import nodes, uses
from babytriton.passes.cpu.lanes import STEPS
from babytriton.passes.statements import at_step, is_number, sequence

# Columns of a task, at most: these sums are on the stack.
_MOST = 4096


def in_blocks(stmt: tirx.Stmt, long_sums: frozenset[tirx.Var]) -> tirx.Stmt:
    """The statement with its long sums of columns by blocks of rows.

    Args:
        stmt: any.
        long_sums: what sums are in that are in float64 only for being long.
    """
    return tvm_ffi.structural_map(stmt, (tirx.For, lambda loop: _by_blocks(loop, long_sums)))


def _by_blocks(rows: tirx.For, long_sums: frozenset[tirx.Var]) -> tirx.Stmt:
    columns = rows.body
    serial = tirx.ForKind.SERIAL
    if not isinstance(columns, tirx.For) or rows.kind != serial or columns.kind != serial:
        return rows
    store, width = columns.body, _most(columns.extent)
    if not isinstance(store, tirx.BufferStore) or store.buffer not in long_sums or width is None:
        return rows
    total = store.value
    is_sum = (
        isinstance(total, tirx.Add)
        and isinstance(total.a, ir.TensorLoad)
        and total.a.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(total.a.indices, store.indices)
        and isinstance(total.b, tirx.Cast)
        and str(total.b.value.ty.dtype) == "float32"
        and not any(load.source.same_as(store.buffer) for load in nodes(total.b, ir.TensorLoad))
    )
    row, column = rows.loop_var, columns.loop_var
    is_of_columns = any(uses(index, column) for index in store.indices)
    if not is_sum or not is_of_columns or any(uses(index, row) for index in store.indices):
        return rows
    if uses(columns.extent, row) or (isinstance(rows.extent, tirx.IntImm) and rows.extent <= STEPS):
        return rows
    return _written_out(rows, columns, store, width)


def _written_out(
    rows: tirx.For, columns: tirx.For, store: tirx.BufferStore, width: int
) -> tirx.Stmt:
    row, column, total = rows.loop_var, columns.loop_var, store.value
    dtype = row.ty.dtype
    narrow = tirx.decl_buffer((width,), "float32", f"{store.buffer.name}_of_block")
    steps, zero = tirx.const(STEPS, dtype), tirx.const(0, dtype)
    block, inner = tirx.Var("block", dtype), tirx.Var(row.name, dtype)
    place = column - columns.min
    own = tirx.BufferLoad(narrow, [place])
    value = at_step(total.b.value, row, rows.min + block * steps + inner)

    def over_columns(body: tirx.Stmt) -> tirx.Stmt:
        own = tirx.Var(column.name, column.ty.dtype)
        return tirx.For(own, columns.min, columns.extent, columns.kind, at_step(body, column, own))

    clear = over_columns(tirx.BufferStore(narrow, tirx.const(0, "float32"), [place]))
    add = over_columns(tirx.BufferStore(narrow, own + value, [place]))
    wide = total.a + tirx.Cast(total.b.ty, own)
    fold = over_columns(tirx.BufferStore(store.buffer, wide, store.indices))
    count = tirx.Min(steps, rows.extent - block * steps)
    part = tirx.For(inner, zero, count, tirx.ForKind.SERIAL, add)
    blocks = tirx.floordiv(rows.extent + tirx.const(STEPS - 1, dtype), steps)
    body = sequence([clear, part, fold])
    return sequence([tirx.AllocBuffer(narrow), tirx.For(block, zero, blocks, rows.kind, body)])


def _most(extent: ir.Expr) -> int | None:
    """How many columns there are at most, if not too many."""
    if isinstance(extent, tirx.Max) and is_number(extent.b, 0):
        extent = extent.a
    sides = (extent.a, extent.b) if isinstance(extent, tirx.Min) else (extent,)
    known = [int(side) for side in sides if isinstance(side, tirx.IntImm)]
    return min(known) if known and min(known) <= _MOST else None
