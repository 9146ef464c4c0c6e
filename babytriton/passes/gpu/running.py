"""How the threads of a block make running totals together, in registers and in shared memory.

Threads of a warp pass what they have on by shuffles; warps leave their totals in shared memory,
which each of them scans in the same way: Hillis and Steele, "Data parallel algorithms" (1986).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.passes.gpu.combining import from_lane
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import WARP, each, guarded, local, number, only, shared


@dataclass
class Running:
    """What is passed on among the threads of a row, or of a piece of one.

    Attributes:
        writer: of the thread, whose registers these are.
        name: what the names of registers begin with.
        reduction: how numbers are combined.
        lane: the thread's number.
        warps: how many there are.
        turns: vectors that a thread has at once, which follow each other through all warps.
        before: once it is known, what a thread starts from.
    """

    writer: Writer
    name: str
    reduction: Block
    lane: ir.Expr
    warps: int
    turns: int

    def __post_init__(self) -> None:
        dtype, count = self.reduction.dtype, self.turns * self.warps
        self._total = self.writer.allocate(self.turns, dtype, f"{self.name}_total")
        self.before, self._other = (
            self.writer.allocate(1, dtype, f"{self.name}_{what}") for what in ("before", "other")
        )
        self._earlier = local(1, dtype, f"{self.name}_earlier")
        self._of_warps = shared(count, dtype, f"{self.name}_of_warps")
        if self._is_passed_on:
            self.writer.allocations += [self._earlier, self._of_warps]
        self._warp = tirx.floordiv(self.lane, number(WARP))
        self._place = tirx.floormod(self.lane, number(WARP))

    @property
    def _is_passed_on(self) -> bool:
        """Whether there is more than one total of a warp."""
        return self.turns * self.warps > 1

    def combined(self, first: ir.Expr, second: ir.Expr) -> ir.Expr:
        """Two numbers as one."""
        assert self.reduction.combine is not None
        return self.reduction.combine(first, second)

    def of_thread(self, turn: ir.Expr, total: ir.Expr) -> Statements:
        """Take what a thread's vector has in a turn, and scan the warp.

        Args:
            turn: its number.
            total: of the vector.
        """
        body = [_put(self._total, total, turn), *self._of_warp(self._total, turn, WARP)]
        if not self._is_passed_on:
            return body
        at = turn * number(self.warps) + self._warp
        left = _put(self._of_warps, tirx.BufferLoad(self._total, [turn]), at)
        return [*body, *guarded(tirx.EQ(self._place, number(WARP - 1)), [left])]

    def of_all(self) -> Statements:
        """Scan what warps have, in turn: each warp adds it up in the same way."""
        if not self._is_passed_on:
            return []
        count = self.turns * self.warps
        is_one = None if count == WARP else self._place < number(count)
        body = [] if is_one is None else [_put(self._earlier, self.reduction.start)]
        taken = _put(self._earlier, tirx.BufferLoad(self._of_warps, [self._place]))
        body += guarded(is_one, [taken])
        return body + self._of_warp(self._earlier, number(0), count)

    def start(self, turn: ir.Expr) -> Statements:
        """Give ``before`` what the threads before this one have, in this turn and earlier."""
        body = [_put(self.before, self.reduction.start)]
        if self._is_passed_on:
            own = turn * number(self.warps) + self._warp
            source = tirx.floormod(own + number(WARP - 1), number(WARP))
            body += [_put(self._other, from_lane("at", only(self._earlier), source))]
            body += guarded(own > number(0), [_put(self.before, only(self._other))])
        value = from_lane("up", tirx.BufferLoad(self._total, [turn]), number(1))
        body += [_put(self._other, value)]
        taken = _put(self.before, self.combined(only(self.before), only(self._other)))
        return [*body, *guarded(self._place >= number(1), [taken])]

    def whole(self) -> tuple[ir.Expr, Statements]:
        """What all threads have together, and what gives it."""
        last = number(self.turns * self.warps - 1)
        return only(self._other), [_put(self._other, from_lane("at", only(self._earlier), last))]

    def _of_warp(self, own: tirx.Var, at: ir.Expr, lanes: int) -> Statements:
        """Give each thread of a warp what it has together with those before it."""

        def double(n: ir.Expr) -> Statements:
            apart = number(1) << n
            value = tirx.BufferLoad(own, [at])
            taken = _put(own, self.combined(only(self._other), value), at)
            return [
                _put(self._other, from_lane("up", value, apart)),
                *guarded(self._place >= apart, [taken]),
            ]

        return each("doubling", (lanes - 1).bit_length(), double)


def _put(buffer: tirx.Var, value: ir.Expr, at: ir.Expr | None = None) -> tirx.Stmt:
    return tirx.BufferStore(buffer, value, [number(0) if at is None else at])
