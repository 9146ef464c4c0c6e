"""What a thread has in registers of the elements that it works on."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.gpu.accesses import Access, Window
from babytriton.passes.gpu.writing import number
from babytriton.passes.statements import conjuncts


@dataclass(frozen=True)
class Vector:
    """Elements that a thread works on at once.

    Attributes:
        first: the number of the first of them in the row.
        kept: its number among all elements that the thread keeps in registers.
        width: how many they are.
        apart: from each to the next.
    """

    first: ir.Expr
    kept: ir.Expr
    width: int
    apart: int = 1

    def element(self, lane: ir.Expr) -> ir.Expr:
        """The number of one of them in the row."""
        return self.first + (lane if self.apart == 1 else lane * number(self.apart))


@dataclass(frozen=True)
class Read:
    """What is read for a vector: where that is, and what lies together there if it jumps."""

    access: Access
    window: Window | None = None

    def is_same(self, other: Read) -> bool:
        """Whether it is the same numbers of memory."""
        if self.window is None or other.window is None:
            return self.window is other.window and self.access.is_same(other.access)
        is_one = self.access.buffer.same_as(other.access.buffer)
        return (
            is_one
            and self.window.count == other.window.count
            and bool(tvm_ffi.structural_equal(self.window.first, other.window.first))
        )


@dataclass(frozen=True)
class Loaded:
    """Registers that what is read is in, from a place on; one for all if it does not move.

    It is there in any case, or where one of some tests holds.
    """

    read: Read
    values: tirx.Var
    start: ir.Expr
    wheres: list[ir.Expr] = field(default_factory=list)

    def is_there(self, where: ir.Expr | None) -> bool:
        """Whether it is there where something holds."""
        if not self.wheres or where is None:
            return not self.wheres
        held = conjuncts(where)
        return any(
            all(any(tvm_ffi.structural_equal(x, y) for y in held) for x in conjuncts(own))
            for own in self.wheres
        )

    def lane(self, number_: ir.Expr, window: Window | None) -> ir.Expr:
        """The value of what reads the same, of an element of the vector."""
        if window is not None:
            return tirx.BufferLoad(self.values, [self.start + window.of(number_)])
        place = self.start + number_ if self.read.access.moves else self.start
        return tirx.BufferLoad(self.values, [place])


@dataclass(frozen=True)
class Kept:
    """Registers for what several blocks read: all that the thread has, or those of a vector."""

    access: Access
    values: tirx.Var
    is_whole: bool

    def of(self, vector: Vector) -> Loaded:
        return Loaded(Read(self.access), self.values, vector.kept if self.is_whole else number(0))
