"""Long sums of columns in float64, of which each few rows are summed up in float32 first.

To make each number wider takes as long as to add it, and half as many of the wider ones fit in a
vector: this is done to one row in `STEPS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.cpu.lanes import STEPS
from babytriton.passes.statements import Effects, at_step, is_number, sequence, statements

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
    if rows.kind != tirx.ForKind.SERIAL:
        return rows
    found: list[_Columns | None] = []
    for part in statements(rows.body):
        accesses = Effects.of(part)
        if not accesses.is_known or long_sums & {*accesses.reads, *accesses.writes}:
            found.append(_Columns.of(part, rows.loop_var, long_sums))
    columns = [one for one in found if one is not None]
    totals = [store.buffer for one in columns for store in one.sums]
    if not columns or len(columns) < len(found) or len(set(totals)) < len(totals):
        return rows
    if isinstance(rows.extent, tirx.IntImm) and rows.extent <= STEPS:
        return rows
    return _written_out(rows, columns)


@dataclass(frozen=True)
class _Columns:
    """A loop over columns that adds to the sum of each.

    Attributes:
        loop: that.
        sums: the stores of the sums.
        width: how many columns there are, at most.
    """

    loop: tirx.For
    sums: list[tirx.BufferStore]
    width: int

    @classmethod
    def of(cls, stmt: tirx.Stmt, row: tirx.Var, long_sums: frozenset[tirx.Var]) -> _Columns | None:
        """Of what a step of the loop over rows does with long sums; None if it is anything else."""
        if not isinstance(stmt, tirx.For) or stmt.kind != tirx.ForKind.SERIAL:
            return None
        stores, width = statements(stmt.body), _most(stmt.extent)
        if width is None or not all(isinstance(store, tirx.BufferStore) for store in stores):
            return None
        sums = [store for store in stores if store.buffer in long_sums]
        if not sums or not all(_is_sum(store, row, stmt.loop_var) for store in sums):
            return None
        # A sum is not there before its block is: nothing else may read it.
        values = [x.value.b if x.buffer in long_sums else x.value for x in stores]
        read = {load.source for value in values for load in nodes(value, ir.TensorLoad)}
        return None if read & long_sums or uses(stmt.extent, row) else cls(stmt, sums, width)

    def over(self, body: list[tirx.Stmt]) -> tirx.Stmt:
        """Statements that a step does, for all columns."""
        own = tirx.Var(self.loop.loop_var.name, self.loop.loop_var.ty.dtype)
        whole = at_step(sequence(body), self.loop.loop_var, own)
        return tirx.For(own, self.loop.min, self.loop.extent, self.loop.kind, whole)

    @property
    def place(self) -> list[ir.Expr]:
        """Where a step has its column's sum of a block of rows."""
        return [self.loop.loop_var - self.loop.min]


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


def _written_out(rows: tirx.For, columns: list[_Columns]) -> tirx.Stmt:
    row, extent = rows.loop_var, rows.extent
    dtype = row.ty.dtype
    steps, zero = tirx.const(STEPS, dtype), tirx.const(0, dtype)
    block, inner = tirx.Var("block", dtype), tirx.Var(row.name, dtype)
    narrow = {
        store.buffer: tirx.decl_buffer((one.width,), "float32", f"{store.buffer.name}_of_block")
        for one in columns
        for store in one.sums
    }

    def cleared(one: _Columns, store: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(narrow[store.buffer], tirx.const(0, "float32"), one.place)

    def added(one: _Columns, store: tirx.BufferStore) -> tirx.BufferStore:
        own = narrow.get(store.buffer)
        if own is None:
            return store
        return tirx.BufferStore(
            own, tirx.BufferLoad(own, one.place) + store.value.b.value, one.place
        )

    def folded(one: _Columns, store: tirx.BufferStore) -> tirx.BufferStore:
        total, own = store.value, tirx.BufferLoad(narrow[store.buffer], one.place)
        wide = total.a + tirx.Cast(total.b.ty, own)
        return tirx.BufferStore(store.buffer, wide, store.indices)

    def of_row(stmt: tirx.Stmt) -> tirx.Stmt:
        one = next((one for one in columns if one.loop.same_as(stmt)), None)
        if one is None:
            return stmt
        return one.over([added(one, store) for store in statements(one.loop.body)])

    body = sequence([of_row(stmt) for stmt in statements(rows.body)])
    body = at_step(body, row, rows.min + block * steps + inner)
    count = tirx.Min(steps, extent - block * steps)
    part = tirx.For(inner, zero, count, tirx.ForKind.SERIAL, body)
    clear = [one.over([cleared(one, store) for store in one.sums]) for one in columns]
    fold = [one.over([folded(one, store) for store in one.sums]) for one in columns]
    blocks = tirx.floordiv(extent + tirx.const(STEPS - 1, dtype), steps)
    whole = tirx.For(block, zero, blocks, rows.kind, sequence([*clear, part, *fold]))
    return sequence([*map(tirx.AllocBuffer, narrow.values()), whole])


def _most(extent: ir.Expr) -> int | None:
    """How many columns there are at most, if not too many."""
    if isinstance(extent, tirx.Max) and is_number(extent.b, 0):
        extent = extent.a
    sides = (extent.a, extent.b) if isinstance(extent, tirx.Min) else (extent,)
    known = [int(side) for side in sides if isinstance(side, tirx.IntImm)]
    return min(known) if known and min(known) <= _MOST else None
