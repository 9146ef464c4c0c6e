"""How the threads of a block make running totals together, in registers and in shared memory.

Threads of a warp pass what they have on by shuffles; warps leave their totals in shared memory,
which each of them scans in the same way: Hillis and Steele, "Data parallel algorithms" (1986).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from babytriton.passes.gpu.combining import Part, from_lane
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import WARP, each, guarded, local, number, shared
from babytriton.passes.operators import Operator


@dataclass(frozen=True)
class Held:
    """What is combined, in memory: that of each part.

    Attributes:
        operator: how it is combined.
        buffers: for each part, with as many numbers.
    """

    operator: Operator
    buffers: tuple[tirx.Var, ...]

    @classmethod
    def of(cls, operator: Operator, make: Callable[..., tirx.Var], count: Any, *name: str) -> Held:
        """Anew.

        Args:
            operator: how it is combined.
            make: gives memory for a count, a dtype and a name.
            count: numbers of each part.
            name: what names begin with, and what they end with.
        """
        first, last = name
        made = (
            make(count, dtype, first + part + last)
            for part, dtype in zip(operator.parts, operator.dtypes)
        )
        return cls(operator, tuple(made))

    def at(self, place: ir.Expr | None = None) -> list[ir.Expr]:
        """What is in a place, or in the only one."""
        place = number(0) if place is None else place
        return [tirx.BufferLoad(buffer, [place]) for buffer in self.buffers]

    def put(self, values: Sequence[ir.Expr], place: ir.Expr | None = None) -> Statements:
        """What stores there; a value may depend on what is there of its part, and of later ones."""
        place = number(0) if place is None else place
        return [
            tirx.BufferStore(buffer, value, [place]) for buffer, value in zip(self.buffers, values)
        ]

    def begin(self, place: ir.Expr | None = None) -> Statements:
        """What stores there what changes nothing."""
        return self.put(self.operator.starts, place)

    def part(self, name: str, others: Held) -> Part:
        """What a thread has, of which others have parts as well, in whatever order.

        Args:
            name: what names begin with.
            others: registers for what one of them has.
        """
        names = [f"{name}{part}_so_far" for part in self.operator.parts]

        def merge(_: ir.Expr, values: Sequence[ir.Expr]) -> Statements:
            return self.put(self.operator.mix(self.at(), values))

        own = tuple(zip(names, self.buffers))
        return Part(own, merge, others=() if self.operator.reads_once else others.buffers)


@dataclass
class Running:
    """What is passed on among the threads of a row, or of a piece of one.

    Attributes:
        writer: of the thread, whose registers these are.
        name: what the names of registers begin with.
        operator: how numbers are combined.
        lane: the thread's number.
        warps: how many there are.
        turns: vectors that a thread has at once, which follow each other through all warps.
        before: once it is known, what a thread starts from.
    """

    writer: Writer
    name: str
    operator: Operator
    lane: ir.Expr
    warps: int
    turns: int

    def __post_init__(self) -> None:
        def held(count: int, what: str, make: Callable[..., tirx.Var]) -> Held:
            return Held.of(self.operator, make, count, self.name, what)

        registers = self.writer.allocate
        self._total = held(self.turns, "_total", registers)
        self.before, self._other = held(1, "_before", registers), held(1, "_other", registers)
        self._earlier = held(1, "_earlier", local)
        self._of_warps = held(self.turns * self.warps, "_of_warps", shared)
        if self._is_passed_on:
            self.writer.allocations += [*self._earlier.buffers, *self._of_warps.buffers]
        self._warp = tirx.floordiv(self.lane, number(WARP))
        self._place = tirx.floormod(self.lane, number(WARP))

    @property
    def _is_passed_on(self) -> bool:
        """Whether there is more than one total of a warp."""
        return self.turns * self.warps > 1

    def of_thread(self, turn: ir.Expr, total: Sequence[ir.Expr]) -> Statements:
        """Take what a thread's vector has in a turn, and scan the warp.

        Args:
            turn: its number.
            total: of the vector.
        """
        body = [*self._total.put(total, turn), *self._of_warp(self._total, turn, WARP)]
        if not self._is_passed_on:
            return body
        at = turn * number(self.warps) + self._warp
        left = self._of_warps.put(self._total.at(turn), at)
        return [*body, *guarded(tirx.EQ(self._place, number(WARP - 1)), left)]

    def of_all(self) -> Statements:
        """Scan what warps have, in turn: each warp adds it up in the same way."""
        if not self._is_passed_on:
            return []
        count = self.turns * self.warps
        is_one = None if count == WARP else self._place < number(count)
        body = [] if is_one is None else self._earlier.begin()
        body += guarded(is_one, self._earlier.put(self._of_warps.at(self._place)))
        return body + self._of_warp(self._earlier, number(0), count)

    def start(self, turn: ir.Expr) -> Statements:
        """Give ``before`` what the threads before this one have, in this turn and earlier."""
        body = self.before.begin()
        if self._is_passed_on:
            own = turn * number(self.warps) + self._warp
            source = tirx.floormod(own + number(WARP - 1), number(WARP))
            body += self._from_lane("at", self._earlier.at(), source)
            body += guarded(own > number(0), self.before.put(self._other.at()))
        body += self._from_lane("up", self._total.at(turn), number(1))
        taken = self.before.put(self.operator.join(self.before.at(), self._other.at()))
        return [*body, *guarded(self._place >= number(1), taken)]

    def whole(self) -> tuple[list[ir.Expr], Statements]:
        """What all threads have together, and what gives it."""
        last = number(self.turns * self.warps - 1)
        return self._other.at(), self._from_lane("at", self._earlier.at(), last)

    def _of_warp(self, own: Held, at: ir.Expr, lanes: int) -> Statements:
        """Give each thread of a warp what it has together with those before it."""

        def double(n: ir.Expr) -> Statements:
            apart = number(1) << n
            taken = own.put(self.operator.join(self._other.at(), own.at(at)), at)
            return [
                *self._from_lane("up", own.at(at), apart),
                *guarded(self._place >= apart, taken),
            ]

        return each("doubling", (lanes - 1).bit_length(), double)

    def _from_lane(self, direction: str, values: Sequence[ir.Expr], lane: ir.Expr) -> Statements:
        """What another thread of the warp has, in registers."""
        return self._other.put([from_lane(direction, value, lane) for value in values])
