"""Partial results of threads that become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir, tirx
from tvm.target import Target

from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    WARP,
    each,
    guarded,
    number,
    only,
    shared,
)

# What threads of a warp can pass to each other: as it is, and as a number of 32 bits.
_AS_IT_IS = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32")
_WIDENED = ("int8", "uint8", "int16", "uint16")
SHUFFLED = (*_AS_IT_IS, *_WIDENED)


# Lines of threads whose results one of them takes in by itself.
FEW = 8


def start(block: Block, total: tirx.Var, place: ir.Expr | None = None) -> tirx.Stmt:
    """The store that a reduction of a thread begins with."""
    assert block.start is not None
    return tirx.BufferStore(total, block.start, [number(0) if place is None else place])


def adding(
    block: Block, total: tirx.Var, place: ir.Expr | None = None
) -> Callable[..., Statements]:
    """What takes a value into a reduction's result, which is in a register."""
    combine, at = block.combine, number(0) if place is None else place
    assert combine is not None

    def add(value: ir.Expr) -> Statements:
        return [tirx.BufferStore(total, combine(tirx.BufferLoad(total, [at]), value), [at])]

    return add


@dataclass(frozen=True)
class Team:
    """Threads of a block that reduce something together.

    Attributes:
        count: how many; a power of two.
        lane: a thread's number.
        has_shuffles: whether threads of a warp pass values to each other without memory.
        allocations: where to add what is allocated.
        columns: how many teams there are beside each other, if each thread of a warp is in another
            one.
        column: the team's number.
    """

    count: int
    lane: ir.Expr
    has_shuffles: bool
    allocations: list[tirx.Var]
    columns: int = 1
    column: ir.Expr | None = None

    def combine(self, *reductions: tuple[Block, tirx.Var]) -> Statements:
        """Give each thread what all of them have together.

        Args:
            reductions: each with a thread's own result, and then that of all.
        """
        if self.count == 1 or not reductions:
            return []
        if self.column is not None:
            return self._by_columns(reductions, self.column)
        if not self.has_shuffles:
            return self._by_memory(reductions)
        return self.merge(*(Part.of(block, total) for block, total in reductions))

    def merge(self, *parts: Part) -> Statements:
        """Give each thread what all of them have of some parts together.

        Warps combine theirs by shuffles, and leave the results in shared memory. Every thread
        combines these in the same order.
        """
        farthest = min(self.count, WARP) // 2

        def halve(n: ir.Expr) -> Statements:
            bit = tirx.const(farthest, "int32") >> n.astype("int32")
            done: Statements = []
            for part in parts:
                done += part.take([from_lane("xor", only(one), bit) for _, one in part.registers])
            return done

        body = each("halving", farthest.bit_length(), halve)
        count = self.count // WARP
        if count <= 1:
            return body
        memory = [
            [shared(count, str(one.ty.dtype), f"{name}_of_warps") for name, one in part.registers]
            for part in parts
        ]
        self.allocations.extend(warps for found in memory for warps in found)
        warp = tirx.floordiv(self.lane, number(WARP))
        owned = [
            (one, warps)
            for found, part in zip(memory, parts)
            for warps, (_, one) in zip(found, part.registers)
        ]
        puts = [tirx.BufferStore(warps, only(one), [warp]) for one, warps in owned]
        is_first = tirx.EQ(tirx.floormod(self.lane, number(WARP)), number(0))

        def take(n: ir.Expr) -> Statements:
            return [
                stmt
                for found, part in zip(memory, parts)
                for stmt in part.take([tirx.BufferLoad(warps, [n + 1]) for warps in found])
            ]

        firsts = [
            tirx.BufferStore(one, tirx.BufferLoad(warps, [number(0)]), [number(0)])
            for one, warps in owned
        ]
        return [*body, *guarded(is_first, puts), *firsts, *each("warp", count - 1, take)]

    def _by_columns(
        self, reductions: Sequence[tuple[Block, tirx.Var]], column: ir.Expr
    ) -> Statements:
        """Each thread takes in what all of its team have, in the same order."""
        found = [
            (block, total, self._shared(block, self.count * self.columns, "threads"))
            for block, total in reductions
        ]

        def at(lane: ir.Expr) -> ir.Expr:
            return lane * number(self.columns) + column

        def take(n: ir.Expr) -> Statements:
            return [
                stmt
                for block, total, values in found
                for stmt in adding(block, total)(tirx.BufferLoad(values, [at(n + 1)]))
            ]

        return [
            *(tirx.BufferStore(values, only(total), [at(self.lane)]) for _, total, values in found),
            *(
                tirx.BufferStore(total, tirx.BufferLoad(values, [column]), [number(0)])
                for _, total, values in found
            ),
            *each("other", self.count - 1, take),
        ]

    def _by_memory(self, reductions: Sequence[tuple[Block, tirx.Var]]) -> Statements:
        """Half of the threads that are left take in what the other half have, again and again."""
        found = [
            (block, total, self._shared(block, self.count, "threads"))
            for block, total in reductions
        ]

        def halve(step: ir.Expr) -> Statements:
            half = number(self.count // 2) >> step
            puts: Statements = []
            for block, _, values in found:
                combine = block.combine
                assert combine is not None
                own, other = (tirx.BufferLoad(values, [n]) for n in (self.lane, self.lane + half))
                puts.append(tirx.BufferStore(values, combine(own, other), [self.lane]))
            return guarded(self.lane < half, puts)

        steps = (self.count // 2).bit_length()
        return [
            *(tirx.BufferStore(values, only(total), [self.lane]) for _, total, values in found),
            *each("halving", steps, halve, tirx.ForKind.SERIAL),
            *(
                tirx.BufferStore(total, tirx.BufferLoad(values, [number(0)]), [number(0)])
                for _, total, values in found
            ),
        ]

    def _shared(self, block: Block, count: int, owners: str) -> tirx.Var:
        found = shared(count, block.dtype, f"{block.buffer.name}_of_{owners}")
        self.allocations.append(found)
        return found


@dataclass(frozen=True)
class Part:
    """What a thread has of something that several threads have parts of.

    Attributes:
        registers: for each of its columns; and what they are of.
        merge: what takes in what another thread has of a column, by its place in the registers.
        weigh: what stands before that, once for all columns: from how many rows either has.
        others: for each of the registers one that holds what another thread has, where it is read
            more than once.
    """

    registers: tuple[tuple[str, tirx.Var], ...]
    merge: Callable[[ir.Expr, Sequence[ir.Expr]], Statements]
    weigh: Callable[[ir.Expr, ir.Expr], Statements] = lambda own, other: []
    others: tuple[tirx.Var, ...] = ()

    @classmethod
    def of(cls, block: Block, total: tirx.Var) -> Part:
        """Of a reduction."""
        own = ((str(block.buffer.name), total),)
        return cls(own, lambda n, others: adding(block, total, n)(*others))

    def take(self, values: Sequence[ir.Expr]) -> Statements:
        """What takes in what another thread has of the only column."""
        held: Statements = [
            tirx.BufferStore(one, value, [number(0)]) for one, value in zip(self.others, values)
        ]
        return [*held, *self.merge(number(0), [only(one) for one in self.others] or values)]


Over: TypeAlias = Callable[[Callable[[ir.Expr, ir.Expr], Statements]], Statements]
"""Does something for each number that a thread has: by its place in registers, and its column."""


@dataclass(frozen=True)
class Lines:
    """Threads of a block that lie in lines, each of which has numbers of the same columns.

    Attributes:
        count: how many lines there are; a power of two where they are more than a few.
        line: a thread's.
        size: columns.
        name: of a line.
        over: does something for each number of a thread.
        allocations: where to add what is allocated.
        rows: how many a line has, after lines were halved so many times; None if no part asks.
    """

    count: int
    line: ir.Expr
    size: int
    name: str
    over: Over
    allocations: list[tirx.Var]
    rows: Callable[[ir.Expr, ir.Expr], ir.Expr] | None = None

    def combine(self, own: Sequence[Part]) -> tuple[Statements, Statements]:
        """What shares the parts of all lines; and what gives a line what all have together."""
        if self.count == 1:
            return [], []
        memory = [
            [
                shared(self.count * self.size, str(one.ty.dtype), f"{name}_of_{self.name}s")
                for name, one in part.registers
            ]
            for part in own
        ]
        self.allocations.extend(one for found in memory for one in found)

        def put(n: ir.Expr, column: ir.Expr) -> Statements:
            place = [self.line * number(self.size) + column]
            return [
                tirx.BufferStore(to, tirx.BufferLoad(one, [n]), place)
                for found, part in zip(memory, own)
                for to, (_, one) in zip(found, part.registers)
            ]

        def take(line: ir.Expr) -> Statements:
            def one(n: ir.Expr, column: ir.Expr) -> Statements:
                place = [line * number(self.size) + column]
                return [
                    stmt
                    for found, part in zip(memory, own)
                    for stmt in part.merge(n, [tirx.BufferLoad(other, place) for other in found])
                ]

            return self.over(one)

        def halve(step: ir.Expr) -> Statements:
            half = number(self.count // 2) >> step
            is_upper = tirx.And(self.line >= half, self.line < half * 2)
            is_lower = self.line < half
            other = self.line + half
            weighed: Statements = []
            if self.rows is not None:
                counts = self.rows(self.line, step), self.rows(other, step)
                weighed = [stmt for part in own for stmt in part.weigh(*counts)]
            return [
                *guarded(is_upper, self.over(put)),
                *guarded(is_lower, [*weighed, *take(other)]),
            ]

        # What is weighed takes many steps, which all lines that are left do at the same time.
        left = min(self.count, FEW) if self.rows is None else 1
        kind = tirx.ForKind.SERIAL if self.rows is None else tirx.ForKind.UNROLLED
        halvings = (self.count // left).bit_length() - 1
        before = each("halving", halvings, halve, kind) if halvings else []
        if left == 1:
            return before, []
        is_left = tirx.LT(self.line, number(left)) if halvings else None
        puts = guarded(is_left, self.over(put))
        return [*before, *puts], each(self.name, left - 1, lambda n: take(n + 1))


def has_shuffles(target: Target) -> bool:
    """Whether kernels for a target may pass values from thread to thread."""
    return str(target.kind.name) == "cuda"


def from_lane(direction: str, value: ir.Expr, lane: ir.Expr) -> ir.Expr:
    """The value that another thread of the warp has.

    Args:
        direction: "xor" for that whose number differs in one bit, "up" for that whose is less, "at"
            for that with a number.
        value: what each has.
        lane: the bit, by how much, or the number.
    """
    mask, size = tirx.const((1 << WARP) - 1, "uint32"), tirx.const(WARP, "int32")
    ending = "" if direction == "at" else f"_{direction}"
    name, dtype = f"tirx.tvm_warp_shuffle{ending}", str(value.ty.dtype)
    lane = lane.astype("int32")
    if dtype in _WIDENED:
        wide = tirx.call_intrin("int32", name, mask, tirx.Cast("int32", value), lane, size, size)
        return tirx.Cast(dtype, wide)
    return tirx.call_intrin(dtype, name, mask, value, lane, size, size)
