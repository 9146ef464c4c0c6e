"""Sums, and the squared distances from their mean, in one pass over a row.

Each vector of numbers has a mean and squared distances of its own, which join those before it: what
that adds is told by how far the means are apart (Chan, Golub and LeVeque, "Algorithms for computing
the sample variance", 1983, equation 1.3). So no digits are lost, however far the numbers are from
zero, or the first from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.gpu.combining import Team, adding, start
from babytriton.passes.gpu.extents import Extent
from babytriton.passes.gpu.program import Block, Program, inlined, is_load_of, reads
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import LANE, as_expr, each, number, only
from babytriton.passes.nests import is_equal


@dataclass(frozen=True)
class Moments:
    """Two reductions for one pass.

    Attributes:
        first: the place of a sum of numbers, or of their distances from some value of the row.
        second: that of the sum of their squared distances from their mean.
        between: the places of the values of the row that the mean is, or is computed from.
        length: of the row.
    """

    first: int
    second: int
    between: tuple[int, ...]
    length: Extent

    KEPT = "counts"
    """What a piece of a row leaves besides its totals: how many numbers it has."""

    def writer(self, writer: Writer) -> MomentsWriter:
        """What writes the pass."""
        return MomentsWriter(writer, self)

    def shift(self, writer: Writer) -> ir.Expr:
        """The mean of the row, once the sum is there."""
        total = only(writer.value(writer.program.blocks[self.first]))
        dtype = str(total.ty.dtype)
        if isinstance(self.length, int):
            return total / tirx.const(self.length, dtype)
        return total / self.length.astype(dtype)

    def of_piece(
        self, first: ir.Expr, second: ir.Expr, kept: ir.Expr, shift: ir.Expr
    ) -> tuple[ir.Expr, ir.Expr]:
        """The squared distances of a piece from the mean of the row; and whether it has any."""
        distance = first / kept - shift
        return second + kept * distance * distance, kept > tirx.const(0, kept.ty.dtype)

    def settled(self, total: tirx.Var, shift: tirx.Var) -> Statements:
        """What stands after the pass over the whole row."""
        return []


def moments(program: Program) -> tuple[Moments, ...]:
    """The sums of a program, and of squared distances, that one pass can do together."""
    found = (_moments(program, place) for place in range(len(program.blocks)))
    return tuple(pair for pair in found if pair is not None)


def _moments(program: Program, first: int) -> Moments | None:
    total = program.blocks[first]
    if not _is_sum(total):
        return None
    blocks, length = program.blocks, program.length
    places: dict[tirx.Var, int] = {}
    for place, block in enumerate(program.blocks[first + 1 :], first + 1):
        if not reads(block.value, {total.buffer, *places}):
            continue
        if block.combine is None and not block.has_elements:
            places[block.buffer] = place
        elif _is_of_squares(total, _values(blocks[n] for n in places.values()), block, length):
            return Moments(first, place, tuple(places.values()), length)
    return None


def column_moments(program: Program) -> list[tuple[int, int]]:
    """The places of sums along columns, and of those of squared distances from their means."""
    values = _values(block for block in program.blocks if block.combine is None)
    sums = [(place, block) for place, block in enumerate(program.blocks) if _is_sum(block)]
    return [
        (first, second)
        for first, total in sums
        for second, block in sums
        if first != second and _is_of_squares(total, values, block, program.row_count)
    ]


def _values(blocks: Iterable[Block]) -> dict[tirx.Var, ir.Expr]:
    """What blocks compute, by where they store it."""
    return {block.buffer: block.value for block in blocks}


def _is_sum(block: Block) -> bool:
    """Whether a block adds up floats that are wide enough for it."""
    return block.combine is tirx.Add and block.dtype in ("float32", "float64")


def _is_of_squares(
    total: Block, values: Mapping[tirx.Var, ir.Expr], block: Block, length: Extent
) -> bool:
    """Whether a block sums up the squared distances of what `total` is of from the mean of that.

    Args:
        total: a sum.
        values: of the row, that may be computed from it.
        block: that may read any of these.
        length: how many numbers are added up.
    """
    if not _is_sum(block) or block.dtype != total.dtype:
        return False
    square = block.value
    if not isinstance(square, tirx.Mul) or not tvm_ffi.structural_equal(square.a, square.b):
        return False
    if not isinstance(square.a, tirx.Sub):
        return False
    own, mean = square.a.a, inlined(square.a.b, values)
    if reads(own, {total.buffer, *values}):
        return False
    added = total.value
    is_from = isinstance(added, tirx.Sub) and isinstance(mean, tirx.Add)  # some value of the row
    if is_from and tvm_ffi.structural_equal(added.b, mean.b):
        added, mean = added.a, mean.a
    is_same = bool(tvm_ffi.structural_equal(own, added))
    return is_same and _is_mean(mean, total, length)


def _is_mean(expr: ir.Expr, total: Block, length: Extent) -> bool:
    """Whether an expression is a sum over as many numbers as a row has."""
    if not isinstance(expr, tirx.Div) or not is_load_of(expr.a, total.buffer):
        return False
    if isinstance(expr.b, tirx.FloatImm):
        return isinstance(length, int) and expr.b.value == length
    return isinstance(expr.b, tirx.Cast) and is_equal(expr.b.value, as_expr(length))


class MomentsWriter:
    """Writes the pass of two reductions.

    Args:
        writer: of the thread.
        pair: which reductions.
    """

    def __init__(self, writer: Writer, pair: Moments) -> None:
        self._writer = writer
        self.pair = pair
        blocks = writer.program.blocks
        self._first, self._second = blocks[pair.first], blocks[pair.second]
        self._sum, self._squares = (writer.total(x, "row") for x in (self._first, self._second))
        name = self._first.buffer.name
        self._values = self._allocate(f"{name}_distances", writer.width)
        self._of_vector = self._allocate(f"{name}_of_vector")
        self._mean = self._allocate(f"{name}_mean")
        self._count = self._allocate(f"{name}_count")
        self.kept = self._allocate(f"{name}_counted")

    def _allocate(self, name: str, count: int = 1) -> tirx.Var:
        return self._writer.allocate(count, self._first.dtype, name)

    def _number(self, value: float) -> ir.Expr:
        return tirx.const(value, self._first.dtype)

    @property
    def totals(self) -> dict[int, tirx.Var]:
        """Where both are, by their places."""
        return {self.pair.first: self._sum, self.pair.second: self._squares}

    def begin(self) -> Statements:
        """What stands before the pass."""
        starts = [start(self._first, self._sum), start(self._second, self._squares)]
        return [*starts, *(_put(one, self._number(0)) for one in (self._mean, self._count))]

    def first_of(self, vector: Vector) -> Statements:
        """What takes the elements of a vector into the sum."""
        add = adding(self._first, self._of_vector)

        def take(lane: ir.Expr, value: ir.Expr) -> Statements:
            kept = tirx.BufferStore(self._values, value, [lane])
            return [kept, *add(tirx.BufferLoad(self._values, [lane]))]

        return [
            _put(self._of_vector, self._number(0)),
            *self._writer.elements(self._first, vector, take),
            *adding(self._first, self._sum)(only(self._of_vector)),
        ]

    def second_of(self, vector: Vector) -> Statements:
        """What takes them into the squared distances, once the sum has them."""
        width, count = self._number(vector.width), only(self._count)
        add = adding(self._second, self._squares)
        mean = tirx.Var("own_mean", self._first.dtype)
        apart = tirx.Var("apart", self._first.dtype)
        share = tirx.Var("share", self._first.dtype)

        def square(lane: ir.Expr) -> Statements:
            distance = tirx.BufferLoad(self._values, [lane]) - mean
            return add(distance * distance)

        return [
            tirx.Bind(mean, only(self._of_vector) / width),
            *(each(LANE, vector.width, square) if vector.width > 1 else []),
            tirx.Bind(apart, mean - only(self._mean)),
            tirx.Bind(share, width / (count + width)),
            # In this order, as the first vector has nothing to be apart from, and may be large.
            *add(apart * (share * count) * apart),
            _put(self._mean, only(self._mean) + apart * share),
            _put(self._count, count + width),
        ]

    def across(self, team: Team) -> Statements:
        """Give each thread what all of them have together."""
        own = only(self._count)
        whole = tirx.Max(only(self.kept), self._number(1))
        apart = tirx.Var("apart", self._first.dtype)
        return [
            _put(self.kept, own),
            *team.combine((self._first, self._sum), (self._first, self.kept)),
            tirx.Bind(apart, only(self._mean) - only(self._sum) / whole),
            *adding(self._second, self._squares)(own * apart * apart),
            *team.combine((self._second, self._squares)),
        ]

    def settled(self) -> Statements:
        """What stands after the pass over the whole row."""
        return []


def _put(buffer: tirx.Var, value: ir.Expr) -> tirx.Stmt:
    return tirx.BufferStore(buffer, value, [number(0)])
