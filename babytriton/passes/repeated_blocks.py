"""What a kernel would compute twice, it computes once.

Each operator finds by itself what it needs of a row: softmax and log_softmax of the same one both
take its maximum, and the sum of the same exponentials. Of blocks that compute the same, the first
stays. What is cheap stays for each that reads it, with which it is one expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import nodes, with_fields
from babytriton.passes.blocks import only_block
from babytriton.passes.intrinsics import has_slow_functions, is_pure
from babytriton.passes.statements import sequence, statements


def without_repeated_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel, unscheduled, of whose blocks none computes what another one has computed."""
    root = func.body.block
    parts = statements(root.body)
    blocks = [block for part in parts if (block := only_block(part)) is not None]
    if len(parts) < 2 or len(blocks) < len(parts):
        return func
    writes = list(map(_written, parts))
    # Of sizes that a call tells, FuseTIR leaves several variables, and of tensors that have them.
    tensors = {load.source for load in nodes(root.body, ir.TensorLoad)}.union(*writes)
    if not tensors <= {*func.params, *root.alloc_buffers}:
        return func
    found = _Once(Counter(buffer for written in writes for buffer in written), set(func.params))
    for part, block, written in zip(parts, blocks, writes):
        found.add(part, block, written)
    if not found.same:
        return func
    gone = {buffer for buffer in found.same if buffer not in func.params} | set(found.results)
    body = _of(sequence(found.kept), found.results)
    left = [buffer for buffer in root.alloc_buffers if buffer not in gone]
    block = with_fields(root, body=body, alloc_buffers=left)
    whole = s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block, func.body.span)
    return tirx.PrimFunc(func.params, whole, func.ret_type, func.attrs, func.span)


class _Once:
    """The statements of a kernel, each for a block, without those that compute the same.

    Args:
        writes: how many of them write to each buffer.
        params: of the kernel.

    Attributes:
        kept: those that stay.
        same: for each buffer that is not needed, the one that has the same values.
        results: for buffers inside the kernel, which of its results have these values.
    """

    def __init__(self, writes: Counter[tirx.Var], params: set[tirx.Var]) -> None:
        self.kept: list[tirx.Stmt] = []
        self.same: dict[tirx.Var, tirx.Var] = {}
        self.results: dict[tirx.Var, tirx.Var] = {}
        self._params = params
        self._cheap: dict[tirx.Var, tirx.Var] = {}
        """The same for what is computed where it is read, and stays for each reader."""
        self._writes = writes
        self._to_come = writes.copy()
        self._read: set[tirx.Var] = set()
        self._known: dict[tuple[Any, ...], list[tuple[tirx.Stmt, tirx.Var]]] = {}

    def add(self, part: tirx.Stmt, block: s_tir.SBlock, written: set[tirx.Var]) -> None:
        """Take the statement that comes next.

        Args:
            part: the statement.
            block: that it is for.
            written: the buffers that it writes to.
        """
        part = _of(part, self.same)
        reads = {load.source for load in nodes(part, ir.TensorLoad)}
        self._to_come.subtract(written)
        if not any(self._to_come[buffer] for buffer in reads) and _is_value(block):
            (buffer,) = written
            first = self._first(part, buffer) if self._writes[buffer] == 1 else None
            if first is not None and block.init is None and not has_slow_functions(block):
                self._cheap[buffer] = first
            elif first is not None and self._is_replaced(buffer, first):
                self.same[buffer] = first
                return
        self._read |= reads
        self.kept.append(part)

    def _first(self, part: tirx.Stmt, buffer: tirx.Var) -> tirx.Var | None:
        """The buffer that another statement has written the same values to."""
        part = _of(part, self._cheap)
        reads = [load.source for load in nodes(part, ir.TensorLoad)]
        others = (None if source.same_as(buffer) else source for source in reads)
        # Whatever it writes to, a statement has the same hash.
        key = (tvm_ffi.structural_hash(part, map_free_vars=True), *others)
        alike = self._known.setdefault(key, [])
        for other, first in alike:
            if tvm_ffi.structural_equal(_values(other), _values(part, {buffer: first})):
                return first
        alike.append((part, buffer))
        return None

    def _is_replaced(self, buffer: tirx.Var, first: tirx.Var) -> bool:
        """Whether a buffer need not be written, for which another one is there."""
        if buffer not in self._params:
            return True
        # A result is written where the other was; of several results each has its own memory.
        if first in self._params or first in self.results or buffer in self._read:
            return False
        self.results[first] = buffer
        return True


def _written(part: tirx.Stmt) -> set[tirx.Var]:
    """The buffers that a statement writes to, as far as it says."""
    regions = [region for block in nodes(part, s_tir.SBlock) for region in block.writes]
    stores = nodes(part, tirx.BufferStore)
    return {region.source for region in regions} | {store.buffer for store in stores}


def _is_value(block: s_tir.SBlock) -> bool:
    """Whether a block does no more than to compute a number for each of its points."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not all(map(is_pure, nodes(block, ir.Call))):
        return False
    if block.init is not None:
        return isinstance(block.init, tirx.BufferStore)
    return not any(load.source.same_as(store.buffer) for load in nodes(store, ir.TensorLoad))


def _values(part: tirx.Stmt, buffers: Mapping[tirx.Var, tirx.Var] | None = None) -> list[Any]:
    """What a statement computes: equal to that of another one that computes the same.

    Args:
        part: the statement.
        buffers: others in the place of some that it writes to.
    """

    def opened(realize: s_tir.SBlockRealize) -> tirx.Stmt:
        # Of blocks as they are, TVM takes tensors for equal that only are of the same types.
        block = realize.block
        at = dict(zip([axis.var for axis in block.iter_vars], realize.iter_values))
        steps = sequence([block.body] if block.init is None else [block.init, block.body])
        return tirx.IfThenElse(realize.predicate, _of(steps, {**at, **(buffers or {})}), None)

    (block,) = nodes(part, s_tir.SBlock)
    types = [region.source.ty for region in block.writes]
    kinds = [int(axis.iter_type) for axis in block.iter_vars]
    return [tvm_ffi.structural_map(part, (s_tir.SBlockRealize, opened)), kinds, types]


def _of(part: tirx.Stmt, variables: Mapping[tirx.Var, ir.Expr]) -> tirx.Stmt:
    """A statement with others in the place of some variables."""
    if not variables:
        return part
    return tvm_ffi.structural_map(part, (ir.Var, lambda var: variables.get(var, var)))
