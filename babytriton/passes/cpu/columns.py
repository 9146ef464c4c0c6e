"""Long sums of columns in float64, of which each few rows are summed up in float32 first.

To make each number wider takes as long as to add it, and half as many of the wider ones fit in a
vector: this is done to one row in `STEPS`.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.blocks import nodes, uses
from babytriton.passes.cpu.lanes import STEPS
from babytriton.passes.statements import at_step, is_number, sequence, statements

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
    stores, width = statements(columns.body), _most(columns.extent)
    if width is None or not all(isinstance(store, tirx.BufferStore) for store in stores):
        return rows
    sums = [store for store in stores if store.buffer in long_sums]
    if not sums or not all(_is_sum(store, rows.loop_var, columns.loop_var) for store in sums):
        return rows
    totals = {store.buffer for store in sums}
    values = [one.value.b if one.buffer in totals else one.value for one in stores]
    if len(totals) < len(sums) or any(
        load.source in totals for value in values for load in nodes(value, ir.TensorLoad)
    ):
        return rows
    row, extent = rows.loop_var, rows.extent
    if uses(columns.extent, row) or (isinstance(extent, tirx.IntImm) and extent <= STEPS):
        return rows
    return _written_out(rows, columns, sums, width)


def _is_sum(store: tirx.BufferStore, row: tirx.Var, column: tirx.Var) -> bool:
    """Whether a store adds what is in float32 to the sum of a column."""
    total = store.value
    return (
        isinstance(total, tirx.Add)
        and isinstance(total.a, ir.TensorLoad)
        and total.a.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(total.a.indices, store.indices)
        and isinstance(total.b, tirx.Cast)
        and str(total.b.value.ty.dtype) == "float32"
        and any(uses(index, column) for index in store.indices)
        and not any(uses(index, row) for index in store.indices)
    )


def _written_out(
    rows: tirx.For, columns: tirx.For, sums: list[tirx.BufferStore], width: int
) -> tirx.Stmt:
    row, column = rows.loop_var, columns.loop_var
    dtype = row.ty.dtype
    narrow = {
        store.buffer: tirx.decl_buffer((width,), "float32", f"{store.buffer.name}_of_block")
        for store in sums
    }
    steps, zero = tirx.const(STEPS, dtype), tirx.const(0, dtype)
    block, inner = tirx.Var("block", dtype), tirx.Var(row.name, dtype)
    place = [column - columns.min]

    def over_columns(body: list[tirx.Stmt]) -> tirx.Stmt:
        own = tirx.Var(column.name, column.ty.dtype)
        whole = at_step(sequence(body), column, own)
        return tirx.For(own, columns.min, columns.extent, columns.kind, whole)

    def added(store: tirx.BufferStore) -> tirx.BufferStore:
        own = narrow.get(store.buffer)
        if own is None:
            return store
        return tirx.BufferStore(own, tirx.BufferLoad(own, place) + store.value.b.value, place)

    def folded(store: tirx.BufferStore) -> tirx.BufferStore:
        total, own = store.value, tirx.BufferLoad(narrow[store.buffer], place)
        wide = total.a + tirx.Cast(total.b.ty, own)
        return tirx.BufferStore(store.buffer, wide, store.indices)

    clear = [tirx.BufferStore(own, tirx.const(0, "float32"), place) for own in narrow.values()]
    add = over_columns([added(store) for store in statements(columns.body)])
    add = at_step(add, row, rows.min + block * steps + inner)
    count = tirx.Min(steps, rows.extent - block * steps)
    part = tirx.For(inner, zero, count, tirx.ForKind.SERIAL, add)
    blocks = tirx.floordiv(rows.extent + tirx.const(STEPS - 1, dtype), steps)
    body = sequence([over_columns(clear), part, over_columns([folded(store) for store in sums])])
    whole = tirx.For(block, zero, blocks, rows.kind, body)
    return sequence([*map(tirx.AllocBuffer, narrow.values()), whole])


def _most(extent: ir.Expr) -> int | None:
    """How many columns there are at most, if not too many."""
    if isinstance(extent, tirx.Max) and is_number(extent.b, 0):
        extent = extent.a
    sides = (extent.a, extent.b) if isinstance(extent, tirx.Min) else (extent,)
    known = [int(side) for side in sides if isinstance(side, tirx.IntImm)]
    return min(known) if known and min(known) <= _MOST else None
