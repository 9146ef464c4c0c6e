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

from tvm import ir, tirx

from babytriton.passes.gpu.combining import Part, adding, start
from babytriton.passes.gpu.moments import column_moments
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.writer import Statements, Vector, Writer

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
    found = [(str(block.buffer.name), block.dtype) for block in blocks]
    counts = (f"{blocks[0].buffer.name}_counts", blocks[0].dtype)
    return [*found, counts] if len(blocks) > 1 else found


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
        return Part(tuple(zip(self._names, self.own)), self.merge)

    def clear(self, n: ir.Expr) -> Statements:
        """What it begins with."""
        return [start(block, total, n) for block, total in self.results]

    def from_row(self, vector: Vector) -> Statements:
        """What is read of a row before all others."""
        return []

    def before_rows(self, n: ir.Expr) -> Statements:
        """What stands before a few rows that are taken in."""
        return []

    def after_rows(self, n: ir.Expr) -> Statements:
        """What stands after them."""
        return []

    def of_row(self, place: ir.Expr, vector: Vector) -> Statements:
        """What takes a row in, which has a place among the thread's own."""
        ((block, total),) = self.results
        return self._writer.elements(
            block, vector, lambda lane, value: adding(block, total, lane)(value)
        )

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

    def clear(self, n: ir.Expr) -> Statements:
        return [*super().clear(n), *self._cleared(n, self.own[-1])]

    def from_row(self, vector: Vector) -> Statements:
        def put(lane: ir.Expr, value: ir.Expr) -> Statements:
            return [tirx.BufferStore(self._mean, value, [lane])]

        return self._writer.elements(self._blocks[0], vector, put)

    def before_rows(self, n: ir.Expr) -> Statements:
        return self._cleared(n, self._distances, self._their_squares)

    def _cleared(self, n: ir.Expr, *buffers: tirx.Var) -> Statements:
        zero = tirx.const(0, self._dtype)
        return [tirx.BufferStore(one, zero, [n]) for one in buffers]

    def of_row(self, place: ir.Expr, vector: Vector) -> Statements:
        (first, total), _ = self.results

        def take(lane: ir.Expr, value: ir.Expr) -> Statements:
            own, apart = (tirx.Var(name, self._dtype) for name in ("own", "apart"))
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
                tirx.BufferStore(self.own[-1], tirx.Cast(self._dtype, place + 1), [lane]),
            ]

        return self._writer.elements(first, vector, take)

    def after_rows(self, n: ir.Expr) -> Statements:
        second, squares = self.results[1]
        mean, distances, count, found = (
            tirx.BufferLoad(one, [n])
            for one in (self._mean, self._distances, self.own[-1], self._their_squares)
        )
        share, moved = (tirx.Var(name, self._dtype) for name in ("share", "moved"))
        one = tirx.const(1, self._dtype)
        return [
            tirx.Bind(share, one / tirx.Max(count, one)),
            tirx.Bind(moved, distances * share),
            *adding(second, squares, n)(found - distances * moved),
            tirx.BufferStore(self._mean, mean + moved, [n]),
        ]

    def merge(self, n: ir.Expr, others: Sequence[ir.Expr]) -> Statements:
        total, squares, count = (tirx.BufferLoad(one, [n]) for one in self.own)
        other_total, other_squares, other_count = others
        one = tirx.const(1, self._dtype)
        apart, both = (tirx.Var(name, self._dtype) for name in ("apart", "both"))
        means = other_total / tirx.Max(other_count, one) - total / tirx.Max(count, one)
        weight = count / tirx.Max(both, one) * other_count
        # In this order, as what has no rows has nothing to be apart from, and others may be large.
        joined = squares + (other_squares + apart * weight * apart)
        return [
            tirx.Bind(both, count + other_count),
            tirx.Bind(apart, means),
            tirx.BufferStore(self.own[1], joined, [n]),
            tirx.BufferStore(self.own[0], total + other_total, [n]),
            tirx.BufferStore(self.own[2], both, [n]),
        ]
