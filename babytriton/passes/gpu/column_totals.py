"""What threads have of reductions along columns, row after row.

A sum and the squared distances from its mean need each row once. A thread takes distances from the
mean of the rows before, at first from one of them, for a few rows at a time; then it moves the mean
and takes off by how much that brings the distances down. Two threads' join by how far their means
are apart (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, equation
1.3). So no digits are lost, however far the numbers are from zero, or the first from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.gpu.combining import Part, adding, start
from babytriton.passes.gpu.extents import known
from babytriton.passes.gpu.moments import column_moments
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import as_index

Together: TypeAlias = tuple[Block, ...]
"""A reduction; or two, of which the second is of squared distances from the mean of the first."""


def together(program: Program) -> list[Together] | None:
    """The reductions of a program; None if others than those of squares read any of its results."""
    blocks = program.blocks
    pairs = column_moments(program)
    seconds = {second for _, second in pairs}
    if not program.dependent.issubset(seconds):
        return None
    firsts = {first: (blocks[first], blocks[second]) for first, second in pairs}
    if len(firsts) < len(pairs):
        return None
    return [
        firsts.get(place, (block,))
        for place, block in enumerate(blocks)
        if block.combine is not None and place not in seconds
    ]


def registers(blocks: Together) -> list[tuple[str, str]]:
    """Of what a thread has numbers for each column: what these are, and their dtype."""
    return [(str(block.buffer.name), block.dtype) for block in blocks]


def has_moments(own: Sequence[Together]) -> bool:
    """Whether any of the reductions are two."""
    return any(len(blocks) > 1 for blocks in own)


def total_of(writer: Writer, blocks: Together) -> Total:
    """What a thread has of reductions, in registers of its own."""
    return Moments(writer, blocks) if len(blocks) > 1 else Total(writer, blocks)


class Total:
    """What a thread has of a reduction, for a vector of columns.

    Args:
        writer: of the thread.
        blocks: the reduction.

    Attributes:
        own: the registers.
    """

    def __init__(self, writer: Writer, blocks: Together) -> None:
        self._writer = writer
        self._blocks = blocks
        self._names = [name for name, _ in registers(blocks)]
        self.own = [
            writer.allocate(writer.width, dtype, f"{name}_vector")
            for name, dtype in registers(blocks)
        ]

    @property
    def results(self) -> list[tuple[Block, tirx.Var]]:
        """The reductions, and where their results are."""
        return list(zip(self._blocks, self.own))

    @property
    def part(self) -> Part:
        """The same as a part of what all threads have."""
        return Part(tuple(zip(self._names, self.own)), self.merge, self.weigh)

    def clear(self, n: ir.Expr) -> Statements:
        """What it begins with."""
        return [start(block, total, n) for block, total in self.results]

    def from_row(self, vector: Vector) -> Statements:
        """What is read of a row before all others."""
        return []

    def before_rows(self, n: ir.Expr) -> Statements:
        """What stands before a few rows that are taken in."""
        return []

    def counted(self, rows: ir.Expr) -> Statements:
        """What stands after them, once for all columns: from how many the thread has had so far."""
        return []

    def after_rows(self, n: ir.Expr) -> Statements:
        """What stands after that for each column."""
        return []

    def of_row(self, vector: Vector) -> Statements:
        """What takes a row in."""
        ((block, total),) = self.results
        return self._writer.elements(
            block, vector, lambda lane, value: adding(block, total, lane)(value)
        )

    def weigh(self, own: ir.Expr, other: ir.Expr) -> Statements:
        """What stands before what another thread has is taken in: from how many rows either has."""
        return []

    def merge(self, n: ir.Expr, others: Sequence[ir.Expr]) -> Statements:
        """What takes in what another thread has of a column."""
        ((block, total),) = self.results
        return adding(block, total, n)(*others)


class Moments(Total):
    """What a thread has of a sum, and of the squared distances from its mean."""

    def __init__(self, writer: Writer, blocks: Together) -> None:
        super().__init__(writer, blocks)
        self._dtype = blocks[0].dtype
        self._mean, self._distances, self._their_squares = (
            writer.allocate(writer.width, self._dtype, f"{name}_vector")
            for name in (f"{self._names[0]}_mean", "distances", "their_squares")
        )
        self._share, self._other_share, self._weight = self._named("share", "share", "weight")

    def _named(self, *names: str) -> list[tirx.Var]:
        return [tirx.Var(name, self._dtype) for name in names]

    def from_row(self, vector: Vector) -> Statements:
        def put(lane: ir.Expr, value: ir.Expr) -> Statements:
            return [tirx.BufferStore(self._mean, value, [lane])]

        return self._writer.elements(self._blocks[0], vector, put)

    def before_rows(self, n: ir.Expr) -> Statements:
        zero = tirx.const(0, self._dtype)
        return [tirx.BufferStore(one, zero, [n]) for one in (self._distances, self._their_squares)]

    def of_row(self, vector: Vector) -> Statements:
        (first, total), _ = self.results

        def take(lane: ir.Expr, value: ir.Expr) -> Statements:
            own, apart = self._named("own", "apart")
            mean, distances, squares = (
                tirx.BufferLoad(one, [lane])
                for one in (self._mean, self._distances, self._their_squares)
            )
            return [
                tirx.Bind(own, value),
                *adding(first, total, lane)(own),
                tirx.Bind(apart, own - mean),
                tirx.BufferStore(self._distances, distances + apart, [lane]),
                tirx.BufferStore(self._their_squares, squares + apart * apart, [lane]),
            ]

        return self._writer.elements(first, vector, take)

    def counted(self, rows: ir.Expr) -> Statements:
        (self._share,) = self._named("share")
        return [tirx.Bind(self._share, self._share_of(self._float(as_index(rows))))]

    def _float(self, rows: ir.Expr) -> ir.Expr:
        found = known(rows)
        if isinstance(found, int):
            return tirx.const(found, self._dtype)
        return tirx.Cast(self._dtype, rows)

    def _share_of(self, rows: ir.Expr) -> ir.Expr:
        """That of one of so many; of none it is of no matter."""
        one = tirx.const(1, self._dtype)
        if isinstance(rows, tirx.FloatImm):
            return tirx.const(1 / max(rows.value, 1), self._dtype)
        return one / tirx.Max(rows, one)

    def after_rows(self, n: ir.Expr) -> Statements:
        second, squares = self.results[1]
        mean, distances, found = (
            tirx.BufferLoad(one, [n]) for one in (self._mean, self._distances, self._their_squares)
        )
        (moved,) = self._named("moved")
        # Squares too large for the dtype stay infinite: of infinity less infinity, which is no
        # number, the maximum is the other.
        least = found - tirx.max_value(self._dtype)
        return [
            tirx.Bind(moved, distances * self._share),
            *adding(second, squares, n)(tirx.Max(found - distances * moved, least)),
            tirx.BufferStore(self._mean, mean + moved, [n]),
        ]

    def weigh(self, own: ir.Expr, other: ir.Expr) -> Statements:
        names = ("rows", "other_rows", "share", "other_share", "weight")
        rows, other_rows, self._share, self._other_share, self._weight = self._named(*names)
        done: Statements = [
            tirx.Bind(rows, self._float(own)),
            tirx.Bind(self._share, self._share_of(rows)),
        ]
        if tvm_ffi.structural_equal(own, other):
            self._other_share = self._share
            return [*done, tirx.Bind(self._weight, rows * tirx.const(0.5, self._dtype))]
        both = self._share_of(rows + other_rows)
        return [
            *done,
            tirx.Bind(other_rows, self._float(other)),
            tirx.Bind(self._other_share, self._share_of(other_rows)),
            tirx.Bind(self._weight, rows * (other_rows * both)),
        ]

    def merge(self, n: ir.Expr, others: Sequence[ir.Expr]) -> Statements:
        total, squares = (tirx.BufferLoad(one, [n]) for one in self.own)
        other_total, other_squares = others
        (apart,) = self._named("apart")
        if self._other_share is self._share:
            means = (other_total - total) * self._share
        else:
            means = other_total * self._other_share - total * self._share
        # In this order, as what has no rows has nothing to be apart from, and others may be large.
        joined = squares + (other_squares + apart * self._weight * apart)
        return [
            tirx.Bind(apart, means),
            tirx.BufferStore(self.own[1], joined, [n]),
            tirx.BufferStore(self.own[0], total + other_total, [n]),
        ]
