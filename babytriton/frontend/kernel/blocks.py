"""Statements -> blocks: what runs at every point of some independent loops, or reduces over others.

A nest is cut into blocks that schedule rules know, point by point or a reduction, if all of it can
be; else it is one block of its independent loops with the rest inside. What is certain to be
sequential is a block without loops around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from babytriton.frontend.kernel.independence import independent
from babytriton.frontend.kernel.program import (
    ZERO,
    Assign,
    Loop,
    Program,
    Statement,
    buffer,
    distinct,
    exposed,
    has,
    is_local,
    loads_in,
    replaced,
    stores_in,
)
from babytriton.frontend.kernel.reductions import Reduction, combine, reduction_of
from babytriton.frontend.kernel.scalars import loads
from babytriton.types import TensorType, find_dtype


@dataclass(frozen=True, eq=False)
class Block:
    """Statements that run at every point of some loops.

    Attributes:
        spatial: loops whose iterations are independent; only their variables and extents count.
        body: what runs at each point.
        reduced: further loops, over which the one assignment of the body combines values.
        init: the assignment that such a reduction starts with.
    """

    spatial: tuple[Loop, ...]
    body: tuple[Statement, ...]
    reduced: tuple[Loop, ...] = ()
    init: Assign | None = None

    @property
    def is_regular(self) -> bool:
        """Whether schedule rules know its kind: one value a point, or a reduction."""
        return len(self.body) == 1 and isinstance(self.body[0], Assign)

    def written(self) -> list[tirx.Buffer]:
        """The tensors that it writes."""
        return distinct([s.buffer for s in stores_in(self.body) if not is_local(s.buffer)])

    def read(self) -> list[tirx.Buffer]:
        """The tensors that it reads."""
        return distinct([x.source for x in loads_in(self.body) if not is_local(x.source)])


Values = tuple[tuple[tirx.Buffer, ir.Expr], ...]
"""What the locals hold at a place, as far as blocks before have found it out."""


def blocks_of(program: Program) -> tuple[Block, ...]:
    """The blocks of a kernel, in the order they run."""
    found = _Cutter(program.fault).cut(program.body, (), (), [])
    assert found is not None  # Outside of loops everything may be a block of its own.
    return tuple(found)


class _Cutter:
    def __init__(self, fault: tirx.Buffer) -> None:
        self.fault = fault
        self.count = 0

    def cut(
        self,
        statements: Sequence[Statement],
        context: tuple[Loop, ...],
        values: Values,
        live: list[tirx.Buffer],
    ) -> list[Block] | None:
        """The blocks of statements at every point of the context.

        Args:
            statements: in order.
            context: independent loops around them.
            values: of the locals.
            live: the locals that are read after.

        Returns:
            ``None`` where something inside loops is no block that schedule rules know.
        """
        blocks: list[Block] = []
        for i, statement in enumerate(statements):
            after = [*exposed(statements[i + 1 :]), *live]
            written = [store.buffer for store in stores_in([statement])]
            known = tuple((x, value) for x, value in values if not has(written, x))
            if isinstance(statement, Assign):
                values = self.assign(replaced(statement, values), context, known, blocks)
                continue
            found = self.nest(replaced(statement, known), context, values, after, blocks)
            if found is None:
                return None
            values = found
        return blocks

    def assign(
        self, statement: Statement, context: tuple[Loop, ...], values: Values, blocks: list[Block]
    ) -> Values:
        assert isinstance(statement, Assign)
        if not is_local(statement.buffer):
            blocks.append(Block(context, (statement,)))
            return values
        value = statement.value
        if loads(value):
            value = self.stored(statement, value, context, blocks)
        return (*values, (statement.buffer, value))

    def stored(
        self,
        statement: Assign,
        value: ir.Expr,
        context: tuple[Loop, ...],
        blocks: list[Block],
    ) -> ir.Expr:
        """A value of a local at each point of the context, in a buffer; its load."""
        local = statement.buffer
        place, indices = self.temporary(local.name, str(local.dtype), context)
        blocks.append(Block(context, (Assign(place, indices, value, line=statement.line),)))
        return tirx.BufferLoad(place, list(indices))

    def temporary(
        self, name: str, dtype: str, context: tuple[Loop, ...]
    ) -> tuple[tirx.Buffer, tuple[ir.Expr, ...]]:
        self.count += 1
        known = find_dtype(dtype)
        assert known is not None
        shape = tuple(int(loop.extent) for loop in context) or (1,)
        place = buffer(f"{name}_{self.count}", TensorType(shape, known.torch))
        return place, tuple(loop.var for loop in context) or (ZERO,)

    def nest(
        self,
        statement: Statement,
        context: tuple[Loop, ...],
        values: Values,
        live: list[tirx.Buffer],
        blocks: list[Block],
    ) -> Values | None:
        """The blocks of a loop or branch; the values of the locals after it."""
        nest, body = _perfect(statement)
        free = independent(nest, body, live, [self.fault])
        reduction = reduction_of(nest, body, free)
        if reduction is not None:
            return self.reduce(reduction, context, values, blocks)
        if free and len(free) == len(nest):
            inner = self.cut(body, (*context, *nest), values, live)
            if inner is not None and not any(_conflict(inner[:i], x) for i, x in enumerate(inner)):
                blocks += inner
                return values
        if context:
            return None
        rest: tuple[Statement, ...] = tuple(body)
        for loop in reversed(nest):
            if loop not in free:
                rest = (Loop(loop.var, loop.extent, rest),)
        if free:
            blocks.append(Block(tuple(free), rest))
            return values
        return self.sequential(statement, values, live, blocks)

    def sequential(
        self,
        statement: Statement,
        values: Values,
        live: list[tirx.Buffer],
        blocks: list[Block],
    ) -> Values:
        """One block without loops around it; locals go in and out by memory."""
        written = distinct([s.buffer for s in stores_in([statement]) if is_local(s.buffer)])
        # Also where it is not read inside: perhaps it is not written, either.
        before = [Assign(x, (ZERO,), value) for x, value in values if has(written, x)]
        after: list[Statement] = []
        found = tuple((x, value) for x, value in values if not has(written, x))
        for local in written:
            if has(live, local):
                place, indices = self.temporary(local.name, str(local.dtype), ())
                after.append(Assign(place, indices, tirx.BufferLoad(local, [ZERO])))
                found = (*found, (local, tirx.BufferLoad(place, list(indices))))
        blocks.append(Block((), (*before, statement, *after)))
        return found

    def reduce(
        self,
        reduction: Reduction,
        context: tuple[Loop, ...],
        values: Values,
        blocks: list[Block],
    ) -> Values:
        spatial = (*context, *reduction.spatial)
        target = reduction.target
        old: ir.Expr = tirx.BufferLoad(target.buffer, list(target.indices))
        if is_local(target.buffer):
            [old] = [value for local, value in values if local.same_as(target.buffer)]
        elif blocks and _starts(blocks[-1], spatial, target):
            [start] = blocks.pop().body
            assert isinstance(start, Assign)
            old = start.value
        direct = reduction.can_start_with(old) and reduction.dtype == str(target.buffer.dtype)
        if direct and not is_local(target.buffer):
            place, indices = target.buffer, target.indices
        else:
            name = target.buffer.name
            place, indices = self.temporary(name, reduction.dtype, spatial)
        init = Assign(place, indices, reduction.identity, line=target.line)
        load = tirx.BufferLoad(place, list(indices))
        step = Assign(place, indices, reduction.step(load), line=target.line)
        blocks.append(Block(spatial, (step,), reduction.reduced, init))
        if place.same_as(target.buffer):
            return values
        new = load if direct else combine(reduction, old, load, str(target.buffer.dtype))
        if is_local(target.buffer):
            kept = tuple((x, value) for x, value in values if not x.same_as(target.buffer))
            return (*kept, (target.buffer, new))
        last = Assign(target.buffer, target.indices, new, line=target.line)
        blocks.append(Block(spatial, (last,)))
        return values


def _perfect(statement: Statement) -> tuple[list[Loop], tuple[Statement, ...]]:
    """The perfectly nested loops of constant extents that a statement is, and what is inside."""
    nest: list[Loop] = []
    body: tuple[Statement, ...] = (statement,)
    while len(body) == 1 and isinstance(body[0], Loop) and isinstance(body[0].extent, tirx.IntImm):
        nest.append(body[0])
        body = body[0].body
    return nest, body


def _starts(block: Block, spatial: tuple[Loop, ...], target: Assign) -> bool:
    """Whether a block gives the target of a reduction its first value, at each point of it."""
    if len(block.body) != 1 or not isinstance(block.body[0], Assign) or block.reduced:
        return False
    store = block.body[0]
    return (
        store.buffer.same_as(target.buffer)
        and len(block.spatial) == len(spatial)
        and all(a is b for a, b in zip(block.spatial, spatial))
        and all(a.same_as(b) or _equal(a, b) for a, b in zip(store.indices, target.indices))
    )


def _equal(left: ir.Expr, right: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(left, right))


def _conflict(earlier: Sequence[Block], later: Block) -> bool:
    """Whether a block writes what blocks before it read or write: they may not change places."""
    touched = [x for block in earlier for x in (*block.written(), *block.read())]
    return any(has(touched, x) for x in later.written())


def groups_of(blocks: Sequence[Block]) -> list[list[Block]]:
    """Consecutive blocks that share a function, in which they are scheduled together.

    They have their outermost loop in common, so that it can be one loop again. TVM keeps the
    order of a write and a read after it alone, and a block of no known kind would keep the rules
    that know the others from applying.
    """
    groups: list[list[Block]] = []
    for block in blocks:
        last = groups[-1] if groups else []
        shared = bool(last) and _outermost(last[0]) is _outermost(block) is not None
        regular = block.is_regular and all(other.is_regular for other in last)
        if shared and regular and not _conflict(last, block):
            last.append(block)
        else:
            groups.append([block])
    return groups


def _outermost(block: Block) -> Loop | None:
    return block.spatial[0] if block.spatial else None
