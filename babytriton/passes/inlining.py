"""Cheap values in the place of what reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes, with_fields
from babytriton.passes.blocks import element, is_cheap, only_block, plain_blocks
from babytriton.passes.rows import stores_points

_MOST = 8  # nodes of an expression that is put elsewhere, such as a part, or its opposite

_MANY = 32  # blocks of a kernel, beyond which a schedule takes long to inline one after the other


def with_few_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of many blocks without those that any rule inlines, all of them at once.

    These are the values, without calls, that one other value reads, and that once, and which are
    of nothing that changes meanwhile. A schedule goes over the whole kernel for each of them.
    """
    blocks = plain_blocks(func)
    if len(blocks) <= _MANY or not isinstance(func.body.block.body, tirx.SeqStmt):
        return func
    if any(only_block(part) is None for part in func.body.block.body.seq):
        return func
    # Of what is read once there is one reader. The regions that a block reads leave out what it
    # writes as well, such as what it adds to.
    loads = [(load.source, block) for block in blocks for load in nodes(block.body, ir.TensorLoad)]
    counts = Counter(source for source, _ in loads)
    readers = dict(loads)
    written = Counter(region.source for block in blocks for region in block.writes)
    root = func.body.block
    own = {buffer for buffer in root.alloc_buffers if written[buffer] == 1}
    changing = {buffer for buffer in written if buffer not in own}
    values: dict[tirx.Var, s_tir.SBlock] = {}
    kept: list[tirx.Stmt] = []
    for part in root.body.seq:
        block = only_block(part)
        made = computing(block, values)
        if stores_plain_points(made) and not nodes(made.body.value, ir.Call):
            buffer = made.body.buffer
            is_read_once = counts[buffer] == 1 and stores_points(readers[buffer])
            sources = {load.source for load in nodes(made.body.value, ir.TensorLoad)}
            if buffer in own and is_read_once and changing.isdisjoint(sources):
                values[buffer] = made
                continue
        if block is not made:
            part = tvm_ffi.structural_map(part, (s_tir.SBlock, lambda _, made=made: made))
        kept.append(part)
    if not values:
        return func
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    left = [buffer for buffer in root.alloc_buffers if buffer not in values]
    block = with_fields(root, body=body, alloc_buffers=left)
    whole = s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block, func.body.span)
    return tirx.PrimFunc(func.params, whole, func.ret_type, func.attrs, func.span)


def stores_plain_points(block: s_tir.SBlock) -> bool:
    """Whether a block stores one value at each of its points, and its axes are the indices."""
    if not stores_points(block) or block.annotations or block.init is not None:
        return False
    indices, axes = block.body.indices, block.iter_vars
    return len(indices) == len(axes) and all(
        index.same_as(axis.var) for index, axis in zip(indices, axes)
    )


def inlined(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    """The blocks, in order, without those whose cheap values others compute where they read them.

    What else becomes of these values is not looked at: a rule that is given the kernel does that.
    """
    return _without(blocks, lambda _, value: _is_part(value))


def inlined_for(blocks: Sequence[s_tir.SBlock], *, repeat_calls: bool) -> list[s_tir.SBlock]:
    """The blocks as rules see them that inline what is cheap, as `inline_cheap` does.

    Args:
        blocks: of a kernel, in order.
        repeat_calls: whether rules compute values with calls at each of several reads.
    """
    reads = Counter(load.source for block in blocks for load in nodes(block.body, ir.TensorLoad))

    def is_gone(block: s_tir.SBlock, value: ir.Expr) -> bool:
        count = reads[block.body.buffer]
        has_call = not repeat_calls and count > 1 and bool(nodes(value, ir.Call))
        return not has_call and is_cheap(value, count)

    return _without(blocks, is_gone)


def _without(
    blocks: Sequence[s_tir.SBlock], is_gone: Callable[[s_tir.SBlock, ir.Expr], bool]
) -> list[s_tir.SBlock]:
    """The blocks without values that others compute where they read them."""
    values: dict[tirx.Var, s_tir.SBlock] = {}
    found: list[s_tir.SBlock] = []
    last_read = {region.source: n for n, block in enumerate(blocks) for region in block.reads}
    for number, block in enumerate(blocks):
        block = computing(block, values)
        is_read = stores_points(block) and last_read.get(block.body.buffer, 0) > number
        if is_read and is_gone(block, block.body.value):
            values[block.body.buffer] = block
        else:
            found.append(block)
    return found


def _is_part(value: ir.Expr) -> bool:
    """Whether it is no more than a part of something, or its opposite."""
    if nodes(value, ir.Call):
        return False
    places = [index for load in nodes(value, ir.TensorLoad) for index in load.indices]
    count = len(nodes(value, ir.Expr)) - sum(len(nodes(index, ir.Expr)) for index in places)
    return count <= _MOST


def computing(block: s_tir.SBlock, values: Mapping[tirx.Var, s_tir.SBlock]) -> s_tir.SBlock:
    """A block with values in the place of what it reads of them.

    Args:
        block: the one that reads.
        values: the blocks that compute them, by the buffers they store points to.
    """
    if not any(region.source in values for region in block.reads):
        return block
    analyzer = sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def computed(load: ir.TensorLoad) -> ir.Expr:
        other = values.get(load.source)
        if other is None:
            return load
        at = dict(zip([axis.var for axis in other.iter_vars], load.indices))
        value = tvm_ffi.structural_map(other.body.value, (ir.Var, lambda var: at.get(var, var)))
        return tvm_ffi.structural_map(value, (ir.TensorLoad, simplified))

    def simplified(load: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(load.source, [analyzer.simplify(i) for i in load.indices])

    body = tvm_ffi.structural_map(block.body, (ir.TensorLoad, computed))
    reads = [element(load.source, load.indices) for load in nodes(body, ir.TensorLoad)]
    return with_fields(block, reads=reads, body=body)
