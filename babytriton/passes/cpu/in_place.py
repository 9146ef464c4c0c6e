"""Rows on the way to a result, kept where the result will be.

The exponentials of a softmax lie in a row of their own until their sum is known. In the row of the
result they take no further room in the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.cpu.formulas import SMALL
from babytriton.passes.cpu.lanes import moves_by_one
from babytriton.passes.intrinsics import function_name
from babytriton.passes.nests import offset
from babytriton.passes.statements import (
    Effects,
    at_step,
    is_number,
    sequence,
    statements,
    with_parts,
)


@dataclass(frozen=True)
class _Row:
    """A local whose elements become those of a result, one by one, in a loop that ends its use.

    Attributes:
        local: the local's buffer.
        axis: of it, along which the row lies; the others have one element.
        store: of the result, in the loop.
        variable: the loop's.
    """

    local: tirx.Var
    axis: int
    store: tirx.BufferStore
    variable: tirx.Var

    def place(self, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Where an element of the local is in the result."""
        at = indices[self.axis].astype(str(self.variable.ty.dtype))
        return [at_step(index, self.variable, at) for index in self.store.indices]

    def load(self, node: ir.TensorLoad) -> ir.TensorLoad:
        if not node.source.same_as(self.local):
            return node
        return tirx.BufferLoad(self.store.buffer, self.place(node.indices))

    def stored(self, node: tirx.BufferStore) -> tirx.BufferStore:
        if not node.buffer.same_as(self.local):
            return node
        return tirx.BufferStore(self.store.buffer, node.value, self.place(node.indices))


def in_place(body: tirx.Stmt, params: list[tirx.Var]) -> tirx.Stmt:
    """The body of a kernel, whose parameters share no memory, with such rows in its results."""
    effects = Effects.of(body)
    if not effects.is_known:
        return body
    results = [
        param
        for param in params
        if len(effects.writes.get(param, ())) == 1 and param not in effects.reads
    ]
    while True:
        row = _found(body, results)
        if row is None:
            return body
        results = [result for result in results if not result.same_as(row.store.buffer)]
        body = _without(body, row.local)
        body = tvm_ffi.structural_map(
            body, [(ir.TensorLoad, row.load), (tirx.BufferStore, row.stored)]
        )


def _found(stmt: tirx.Stmt, results: list[tirx.Var]) -> _Row | None:
    """The first of the rows in a statement."""
    if isinstance(stmt, tirx.For):
        return _found(stmt.body, results)
    parts = statements(stmt)
    if len(parts) == 1:
        return None
    for number, part in enumerate(parts):
        if isinstance(part, tirx.AllocBuffer):
            row = _row(part.buffer, parts[number + 1 :], results)
        else:
            row = _found(part, results)
        if row is not None:
            return row
    return None


def _row(local: tirx.Var, parts: list[tirx.Stmt], results: list[tirx.Var]) -> _Row | None:
    """The local as a row, if it is one; `parts` are what follows where it is allocated."""
    effects = [Effects.of(part) for part in parts]
    users = [n for n, effect in enumerate(effects) if effect.indices(local)]
    if not users:
        return None
    last = parts[users[-1]]
    axes = [n for n, size in enumerate(local.shape) if not is_number(size, 1)]
    if len(axes) != 1 or not isinstance(last, tirx.For) or local in effects[users[-1]].writes:
        return None
    (axis,) = axes
    stores = statements(last.body)
    if last.kind != tirx.ForKind.SERIAL or not is_number(last.min, 0) or last.step is not None:
        return None
    if not all(isinstance(store, tirx.BufferStore) for store in stores) or _runs_again(stores):
        return None
    if not tvm_ffi.structural_equal(local.shape[axis], last.extent):
        return None
    reads = [_indices(store, local) for store in stores]
    if any(not index[axis].same_as(last.loop_var) for found in reads for index in found):
        return None
    place = max(n for n, found in enumerate(reads) if found)
    store = stores[place]
    is_result = any(store.buffer.same_as(result) for result in results)
    is_row = is_result and moves_by_one(offset(store.buffer, store.indices), last.loop_var)
    if not is_row or str(store.buffer.dtype) != str(local.dtype):
        return None
    return _Row(local, axis, store, last.loop_var)


def _indices(store: tirx.BufferStore, buffer: tirx.Var) -> list[Sequence[ir.Expr]]:
    """Of the store's reads of a buffer."""
    loads = nodes([store.value, *store.indices], ir.TensorLoad)
    return [load.indices for load in loads if load.source.same_as(buffer)]


def _runs_again(stores: list[tirx.Stmt]) -> bool:
    """Whether they may run a second time, for large arguments, and find what they have stored."""
    return any(function_name(call) in SMALL for call in nodes(stores, ir.Call))


def _without(stmt: tirx.Stmt, local: tirx.Var) -> tirx.Stmt:
    """The statement without the allocation of a local."""
    if isinstance(stmt, tirx.For):
        return with_parts(stmt, _without(stmt.body, local))
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    return sequence(
        [
            _without(part, local)
            for part in statements(stmt)
            if not (isinstance(part, tirx.AllocBuffer) and part.buffer.same_as(local))
        ]
    )
