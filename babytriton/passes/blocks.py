"""What schedule rules ask about a kernel's blocks, and the moves they share.

A kernel is a list of blocks in the order they run, each in loops of its own; an iteration of a
block is spatial ("S": every point is independent) or a reduction ("R").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize

from babytriton.ops.primfunc import nodes
from babytriton.passes.factors import has_at_most
from babytriton.passes.statements import is_number
from babytriton.passes.unchecked_schedules import schedule_of

# A value that is read more than once is computed again at each read while that adds at most so
# many expression nodes; beyond, chains such as `y = y * y + y` would double at every step.
CHEAP = 64

# A call (exp, a branch) is not repeated for a consumer this many times larger than the value.
WIDER = 4


def open_kernel(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, list[SBlockInfo]] | None:
    """A schedule of `func` and its blocks; None where it is not blocks in plain loops."""
    opened = _opened(func) if isinstance(func, tirx.PrimFunc) else None
    if opened is None:
        return None
    sch, infos = opened
    return sch.copy(), list(infos)


@lru_cache(maxsize=1)  # Each rule opens the kernel that the one before it has left.
def _opened(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, list[SBlockInfo]] | None:
    # Failed moves are expected here, and rendering each into a message is slow.
    sch = schedule_of(func)
    infos = normalize_prim_func(sch)
    if not infos:
        return None
    for info in infos:
        if not info.iters:
            # A single number: rfactor and the GPU's threads need a loop to hold on to.
            sch.add_unit_loop(info.block_rv)
    return sch, infos


def closed_kernel(sch: s_tir.Schedule) -> tirx.PrimFunc:
    """The kernel of a schedule of :func:`open_kernel`, as it can be opened again."""

    def without(loop: tirx.For) -> tirx.Stmt:
        is_single = is_number(loop.extent, 1) and not uses(loop.body, loop.loop_var)
        return loop.body if is_single else loop

    func = sch.mod["main"]
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, without)))


def plain_blocks(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The blocks in the order they run; none if there is anything else than blocks in loops."""
    found: list[s_tir.SBlock] = []

    def collect(stmt: tirx.Stmt) -> bool:
        if isinstance(stmt, tirx.SeqStmt):
            return all(collect(part) for part in stmt.seq)
        if isinstance(stmt, tirx.For):
            return collect(stmt.body)
        if isinstance(stmt, s_tir.SBlockRealize):
            found.append(stmt.block)
            return True
        return False

    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or not collect(root.block.body):
        return []
    return found


def of_results(
    func: tirx.PrimFunc, wanted: Sequence[int], count: int
) -> tuple[tirx.PrimFunc, list[int]]:
    """A kernel that computes some of the results of another one, and what it needs for them.

    Args:
        func: blocks in plain loops.
        wanted: the places of the results.
        count: how many there are; they are the last parameters.

    Returns:
        The kernel, and the numbers of the parameters that it keeps of those which are read.
    """
    root = func.body.block
    first = len(func.params) - count
    made = [func.params[first + place] for place in wanted]
    statements: list[tirx.Stmt] = []
    needed = set(made)
    body = root.body
    for stmt in reversed(body.seq if isinstance(body, tirx.SeqStmt) else [body]):
        stores = {store.buffer for store in nodes(stmt, tirx.BufferStore)}
        if stores & needed:
            needed |= stores | {load.source for load in nodes(stmt, ir.TensorLoad)}
            needed |= set(nodes(stmt, ir.Var))  # numbers that it is given
            statements.insert(0, stmt)
    kept = [n for n, param in enumerate(func.params[:first]) if param in needed]
    params = [func.params[n] for n in kept]
    inner = [x for x in func.params[first:] if x in needed and x not in made]
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        statements[0] if len(statements) == 1 else tirx.SeqStmt(statements),
        None,
        [*(x for x in root.alloc_buffers if x in needed), *inner],
    )
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return tirx.PrimFunc([*params, *made], realized, func.ret_type, func.attrs), kept


def only_block(stmt: tirx.Stmt) -> s_tir.SBlock | None:
    """The one block in loops, if there is nothing else in these."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt.block if isinstance(stmt, s_tir.SBlockRealize) else None


def in_loops(block: s_tir.SBlock) -> tirx.Stmt:
    """A block in a loop for each of its axes."""
    loops = [tirx.Var(axis.var.name.removeprefix("v_"), "int64") for axis in block.iter_vars]
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, axis in reversed(list(zip(loops, block.iter_vars))):
        stmt = tirx.For(loop, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def is_pointwise(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """One value stored per spatial point: no reduction, no loop inside the block."""
    return info.is_injective() and isinstance(sch.get(info.block_rv).body, tirx.BufferStore)


def points(info: SBlockInfo) -> int | None:
    """How many iterations the block has; None where a size is symbolic."""
    dims = info.dom()
    return math.prod(dims) if all(isinstance(dim, int) for dim in dims) else None


def is_at_least(info: SBlockInfo, size: int) -> bool:
    """Whether the block has `size` iterations or more; an unknown number counts as many."""
    total = points(info)
    return total is None or total >= size


def is_one(extent: int | tirx.Expr) -> bool:
    return isinstance(extent, int) and extent == 1


def same_extents(left: Sequence[int | tirx.Expr], right: Sequence[int | tirx.Expr]) -> bool:
    analyzer = sym.Analyzer()
    return len(left) == len(right) and all(
        a == b if isinstance(a, int) and isinstance(b, int) else analyzer.can_prove_equal(a, b)
        for a, b in zip(left, right)
    )


def parameters(func: tirx.PrimFunc) -> list[tirx.Var]:
    """The buffers that a kernel is given."""
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]


def with_types(func: tirx.PrimFunc, types: Mapping[tirx.Var, tirx.BufferType]) -> tirx.PrimFunc:
    """The kernel with other types for some of its parameters."""
    made = {param: ir.Var(param.name, type) for param, type in types.items()}
    params = [made.get(param, param) for param in func.params]
    body = tvm_ffi.structural_map(func.body, (ir.Var, lambda x: made.get(x, x)))
    # Its own type follows from those of the parameters only where it is made anew.
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def element(buffer: tirx.Var, index: Sequence[ir.Expr]) -> tirx.BufferRegion:
    """The region of one element."""
    one = tirx.const(1, "int64")
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, one) for i in index])


def of_shape(
    type: tirx.BufferType, shape: Sequence[ir.Expr], strides: Sequence[ir.Expr] = ()
) -> tirx.BufferType:
    """The type of a buffer with another shape, and with strides if it is not contiguous."""
    return tirx.BufferType(
        type.dtype,
        type.storage_scope,
        shape,
        strides,
        type.elem_offset,
        type.data_alignment,
        type.offset_factor,
        None,
        type.allocated_addr,
    )


def uses(expr: ir.Expr | tirx.Stmt, var: tirx.Var) -> bool:
    """Whether the expression, or the statement, reads the variable."""
    return any(use.same_as(var) for use in nodes(expr, ir.Var))


def loads(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, buffer: tirx.Buffer) -> list[Any]:
    """The loads of `buffer` in the block's body."""
    body = sch.get(block).body
    return [load for load in nodes(body, ir.TensorLoad) if load.source.same_as(buffer)]


def results(sch: s_tir.Schedule, info: SBlockInfo) -> list[tirx.Buffer]:
    """The buffers that the block writes (an argmax has two)."""
    return [region.source for region in sch.get(info.block_rv).writes]


def written(sch: s_tir.Schedule, info: SBlockInfo) -> tirx.Buffer:
    """The buffer that a pointwise block, or a plain reduction, writes."""
    return results(sch, info)[0]


def is_output(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether the block writes a result of the kernel, not a value of its own."""
    own = sch.mod["main"].body.block.alloc_buffers
    return not all(any(buffer.same_as(other) for other in own) for buffer in results(sch, info))


def inline_cheap(
    sch: s_tir.Schedule,
    infos: list[SBlockInfo],
    *,
    repeat_calls: bool = False,
    text: int = CHEAP,
    keep_for: Sequence[SBlockInfo] = (),
    keep: Sequence[SBlockInfo] = (),
    moves: bool = True,
) -> list[SBlockInfo]:
    """Inline the intermediate values that are as well computed at their reads; the other blocks.

    Values with calls (exp, a branch) that would run more often than now stay, unless
    `repeat_calls`, and those that would add more than so much `text`; so do those to `keep`, and
    what the blocks `keep_for` read. What one block reads several times in one place is still
    computed once: compilers see that. Where a rule `moves` blocks into loops of others by TVM, it
    also keeps what would have a block read different elements of one value.
    """
    kept: list[SBlockInfo] = []
    readers = list(keep_for)
    sizes = {info.name: info.dom() for info in infos}
    for info in infos:
        is_kept = info in keep or any(reads_from(sch, reader, info) for reader in readers)
        is_left = is_kept or (moves and is_read_elsewhere(sch, info))
        if is_left or not is_worth_inlining(sch, info, sizes, repeat_calls, text):
            kept.append(info)
        elif inline(sch, info):
            readers = [reader for reader in readers if reader is not info]
        else:
            kept.append(info)
    return kept


def inline(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Compute a block's value where it is read; whether TVM does so."""
    try:
        sch.compute_inline(info.block_rv)
    except s_tir.ScheduleError:  # For instance: two blocks write the buffer.
        return False
    return True


def inline_numbers(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> list[SBlockInfo]:
    """Inline the single numbers that others are computed from; the other blocks.

    On a GPU a launch takes longer than each thread takes for a number of its own.
    """
    kept = []
    for info in infos:
        is_number = points(info) == 1 and is_pointwise(sch, info) and not is_output(sch, info)
        if is_number and is_cheap_to_repeat(sch, info):
            sch.compute_inline(info.block_rv)
        else:
            kept.append(info)
    return kept


def is_cheap_to_repeat(sch: s_tir.Schedule, info: SBlockInfo, text: int = CHEAP) -> bool:
    """Whether computing a block's value at each read adds no more than so much text."""
    return is_cheap(sch.get(info.block_rv).body.value, len(reads_of(sch, info)), text)


def is_cheap(value: ir.Expr, reads: int, text: int = CHEAP) -> bool:
    """Whether computing a value at each of so many reads adds no more than so much text.

    To read what another block has copied is to read what it copies.
    """
    return reads == 1 or is_copied(value) or len(nodes(value, ir.Expr)) * (reads - 1) <= text


def is_copied(value: ir.Expr) -> bool:
    """Whether a value is one that lies elsewhere, at a place that no memory tells."""
    return isinstance(value, ir.TensorLoad) and not nodes(list(value.indices), ir.TensorLoad)


def reads_of(sch: s_tir.Schedule, info: SBlockInfo) -> list[ir.TensorLoad]:
    """What other blocks read of what a pointwise block writes."""
    buffer, readers = written(sch, info), sch.get_consumers(info.block_rv)
    return [load for reader in readers for load in loads(sch, reader, buffer)]


def places_of(sch: s_tir.Schedule, info: SBlockInfo) -> int:
    """At how many places blocks, of the same axes, read what a pointwise block writes."""
    names: dict[tirx.Var, tirx.Var] = {}
    first: list[tirx.Var] = []
    for reader in sch.get_consumers(info.block_rv):
        own = [axis.var for axis in sch.get(reader).iter_vars]
        first = first or own
        names |= dict(zip(own, first))
    read = reads_of(sch, info)
    return len(different(tvm_ffi.structural_map(read, (ir.Var, lambda x: names.get(x, x)))))


def different(exprs: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Expressions, each once."""
    found: list[ir.Expr] = []
    for expr in exprs:
        if not any(tvm_ffi.structural_equal(expr, other) for other in found):
            found.append(expr)
    return found


def reads_from(sch: s_tir.Schedule, info: SBlockInfo, source: SBlockInfo) -> bool:
    """Whether the block reads what `source` writes."""
    return any(loads(sch, info.block_rv, buffer) for buffer in results(sch, source))


def is_worth_inlining(
    sch: s_tir.Schedule,
    info: SBlockInfo,
    sizes: dict[str, list[int | tirx.Expr]],
    repeat_calls: bool,
    text: int,
) -> bool:
    if not is_pointwise(sch, info) or is_output(sch, info):
        return False
    value = sch.get(info.block_rv).body.value
    has_call = not repeat_calls and bool(nodes(value, ir.Call))
    if has_call:
        is_one_place = len(sch.get_consumers(info.block_rv)) == 1 and places_of(sch, info) == 1
        if not is_one_place or is_wider(sch, info, sizes):
            return False
    return is_cheap_to_repeat(sch, info, text)


def is_wider(
    sch: s_tir.Schedule, info: SBlockInfo, sizes: dict[str, list[int | tirx.Expr]]
) -> bool:
    """Whether a consumer may run so often that repeating the value there would be a waste."""
    consumers = sch.get_consumers(info.block_rv)
    others = [sizes[sch.get(consumer).name_hint] for consumer in consumers]
    return not all(has_at_most(other, WIDER, info.dom()) for other in others)


def loop_of(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, axis: int
) -> s_tir.schedule.LoopRV:
    """The loop that is bound to one axis of the block (wherever moves have put it)."""
    value = get_sblockrealize(sch, block).iter_values[axis]
    return next(loop for loop in sch.get_loops(block) if sch.get(loop).loop_var.same_as(value))


def is_read_elsewhere(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether a consumer and the block read different elements of a value that is computed here.

    Of a block that does both TVM knows only the region around, and refuses to move others by it.
    """
    producers = [sch.get(other).writes for other in sch.get_producers(info.block_rv)]
    computed = [region.source for regions in producers for region in regions]
    return any(
        not tvm_ffi.structural_equal(own.indices, other.indices, map_free_vars=True)
        for buffer in computed
        for own in loads(sch, info.block_rv, buffer)
        for consumer in sch.get_consumers(info.block_rv)
        for other in loads(sch, consumer, buffer)
    )
