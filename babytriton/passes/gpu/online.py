"""Maxima and the sums of exponentials that they keep small, in one pass over a row.

A sum so far is scaled down whenever a larger value turns up, after Milakov and Gimelshein, "Online
normalizer calculation for softmax" (2018). The maximum may be transformed before it is taken from
the exponents, as logsumexp does with infinities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.numerics import from_order_key, order_key
from babytriton.ops.primfunc import nodes
from babytriton.passes.gpu.combining import Team, adding, start
from babytriton.passes.gpu.program import Block, Program, inlined, is_load_of, reads
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import guarded, number, only
from babytriton.passes.intrinsics import function_name


@dataclass(frozen=True)
class Online:
    """Two reductions for one pass.

    Attributes:
        first: the place of a maximum.
        second: that of a sum of exponentials.
        between: the places of the values of the row that the shift is computed from.
        exponent: what is taken from the exponents, the first reduction or a value of it.
    """

    first: int
    second: int
    between: tuple[int, ...]
    exponent: ir.Expr

    KEPT = "shifts"
    """What a piece of a row leaves besides its totals: what it has taken from the exponents."""

    def writer(self, writer: Writer) -> OnlineWriter:
        """What writes the pass."""
        return OnlineWriter(writer, self)

    def shift(self, writer: Writer) -> ir.Expr:
        """What is taken from the exponents of the row, once the maximum is there."""
        return writer.of_row(writer.program.blocks[self.second], self.exponent)

    def of_piece(
        self, first: ir.Expr, second: ir.Expr, kept: ir.Expr, shift: ir.Expr
    ) -> tuple[ir.Expr, ir.Expr]:
        """The sum of a piece with the shift of the row; and whether there is anything in it."""
        return _scaled(second, kept, shift), _is_there(second)

    def settled(self, total: tirx.Var, shift: tirx.Var) -> Statements:
        """What makes the sum of exponentials of infinity less infinity what it is."""
        lost = only(shift) - only(shift)
        put = tirx.BufferStore(total, tirx.Cast(total.ty.dtype, lost), [number(0)])
        return guarded(tirx.EQ(only(shift), _lowest(shift)), [put])


def online(program: Program) -> tuple[Online, ...]:
    """The maxima and sums of exponentials of a program that one pass can do together."""
    found = (_pair(program, place) for place in range(len(program.blocks)))
    return tuple(pair for pair in found if pair is not None)


def _pair(program: Program, top: int) -> Online | None:
    first = program.blocks[top]
    if first.combine is not tirx.Max:
        return None
    values: dict[tirx.Var, int] = {}
    for place, block in enumerate(program.blocks[top + 1 :], top + 1):
        if not reads(block.value, {first.buffer, *values}):
            continue
        if block.combine is None and not block.has_elements:
            values[block.buffer] = place
            continue
        shift = _shift(program, top, values, block) if block.combine is tirx.Add else None
        return (
            None if shift is None else Online(top, place, _between(program, values, shift), shift)
        )
    return None


def _between(program: Program, values: Mapping[tirx.Var, int], shift: ir.Expr) -> tuple[int, ...]:
    """The places of those values that a shift is computed from."""
    found: list[int] = []
    exprs = [shift]
    for buffer, place in reversed(list(values.items())):
        if any(reads(expr, {buffer}) for expr in exprs):
            found.insert(0, place)
            exprs.append(program.blocks[place].value)
    return tuple(found)


def _shift(
    program: Program, top: int, places: Mapping[tirx.Var, int], block: Block
) -> ir.Expr | None:
    """What a block takes from the exponents that it sums up, if these are what `top` is the maximum
    of, less that maximum, and nothing else of the block depends on it.

    Otherwise a sum so far, of numbers less a shift that is not their maximum, might be too large.

    Args:
        program: has the blocks.
        top: the place of the maximum.
        places: of the values of the row that are computed from it.
        block: that sums up.
    """
    factors = [block.value]
    if isinstance(block.value, tirx.Mul):
        factors = [block.value.a, block.value.b]
    exponentials = [x for x in factors if isinstance(x, ir.Call) and function_name(x) == "exp"]
    if len(exponentials) != 1 or not isinstance(exponentials[0].args[0], tirx.Sub):
        return None
    own, shift = exponentials[0].args[0].a, exponentials[0].args[0].b
    others = [x for x in factors if not x.same_as(exponentials[0])]
    if any(reads(x, {program.blocks[top].buffer, *places}) for x in others):
        return None
    values = {buffer: program.blocks[place].value for buffer, place in places.items()}
    is_maximum = _is_maximum(shift, program.blocks[top], values)
    return shift if is_maximum and _is_reduced(own, program.blocks[top]) else None


def _is_reduced(value: ir.Expr, top: Block) -> bool:
    """Whether a value is what `top` is the maximum of, as it is or by its order."""
    value = _uncast(value)
    if tvm_ffi.structural_equal(_uncast(top.value), value):
        return True
    if not str(value.ty.dtype).startswith(("float", "bfloat")):
        return False
    return bool(tvm_ffi.structural_equal(top.value, order_key(value)))


def _is_maximum(shift: ir.Expr, top: Block, values: Mapping[tirx.Var, ir.Expr]) -> bool:
    """Whether a value of the row is the maximum; or 0, where that is infinite."""
    shift = _uncast(inlined(shift, values))
    if isinstance(shift, tirx.Select):
        sides = (shift.true_value, shift.false_value)
        rest = [x for x in sides if not (isinstance(x, tirx.FloatImm) and x.value == 0)]
        constants = nodes(shift.condition, tirx.FloatImm)
        if len(rest) != 1 or not constants or any(math.isfinite(x.value) for x in constants):
            return False
        shift = _uncast(rest[0])
    if is_load_of(shift, top.buffer):
        return True
    loads = [x for x in nodes(shift, ir.TensorLoad) if x.source.same_as(top.buffer)]
    if not loads or str(top.dtype) not in ("int32", "int64"):
        return False
    wide = "float64" if top.dtype == "int64" else "float32"
    return bool(tvm_ffi.structural_equal(shift, _uncast(from_order_key(loads[0], wide))))


def _uncast(expr: ir.Expr) -> ir.Expr:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


class OnlineWriter:
    """Writes the pass of two reductions.

    Args:
        writer: of the thread.
        pair: which reductions.
    """

    def __init__(self, writer: Writer, pair: Online) -> None:
        self._writer = writer
        self.pair = pair
        blocks = writer.program.blocks
        self._top, self._sum = blocks[pair.first], blocks[pair.second]
        self.top, self.total = (writer.total(x, "row") for x in (self._top, self._sum))
        dtype = pair.exponent.ty.dtype
        self.kept = writer.allocate(1, dtype, f"{self._sum.buffer.name}_shift")
        self._shift_before = writer.allocate(1, dtype, f"{self._sum.buffer.name}_shift_before")
        name = f"{self._top.buffer.name}_before"
        self._top_before = writer.allocate(1, self._top.dtype, name)

    @property
    def totals(self) -> dict[int, tirx.Var]:
        """Where both are, by their places."""
        return {self.pair.first: self.top, self.pair.second: self.total}

    def begin(self) -> Statements:
        """What stands before the pass."""
        return [start(self._top, self.top), start(self._sum, self.total), *self.shifted()]

    def shifted(self) -> Statements:
        """What finds the shift for the maximum at hand."""
        writer, blocks = self._writer, self._writer.program.blocks
        places = self.pair.between
        values = [stmt for place in places for stmt in writer.value_of_row(blocks[place])[1]]
        shift = writer.of_row(self._sum, self.pair.exponent)
        return [*values, tirx.BufferStore(self.kept, shift, [number(0)])]

    def first_of(self, vector: Vector) -> Statements:
        """What takes the elements of a vector into the first."""
        add = adding(self._top, self.top)
        taken = self._writer.elements(self._top, vector, lambda _, x: add(x))
        return [tirx.BufferStore(self._top_before, only(self.top), [number(0)]), *taken]

    def second_of(self, vector: Vector) -> Statements:
        """What takes them into the second, once the first has them."""
        add = adding(self._sum, self.total)
        summed = self._writer.elements(self._sum, vector, lambda _, x: add(x))
        is_new = tirx.NE(only(self.top), only(self._top_before))
        # A thread may have seen nothing but minus infinity, which is not the maximum in the end.
        has_shift = tirx.NE(only(self.kept), _lowest(self.kept))
        return [*guarded(is_new, self._rescaled()), *guarded(has_shift, summed)]

    def _rescaled(self) -> Statements:
        """What brings the sum to the shift for the maximum at hand."""
        keep = tirx.BufferStore(self._shift_before, only(self.kept), [number(0)])
        total = _scaled(only(self.total), only(self._shift_before), only(self.kept))
        put = tirx.BufferStore(self.total, total, [number(0)])
        return [keep, *self.shifted(), *guarded(_is_there(only(self.total)), [put])]

    def across(self, team: Team) -> Statements:
        """Give each thread what all of them have together."""
        return [
            *team.combine((self._top, self.top)),
            *self._rescaled(),
            *team.combine((self._sum, self.total)),
        ]

    def settled(self) -> Statements:
        """What stands after the pass over the whole row."""
        return self.pair.settled(self.total, self.kept)


def _scaled(total: ir.Expr, before: ir.Expr, shift: ir.Expr) -> ir.Expr:
    """A sum of exponentials with one shift as that with another."""
    return total * tirx.Cast(total.ty.dtype, tirx.exp(before - shift))


def _is_there(total: ir.Expr) -> ir.Expr:
    """Whether anything was summed up: not at the shift for what a maximum starts from."""
    return tirx.NE(total, tirx.const(0, total.ty.dtype))


def _lowest(shift: tirx.Var) -> ir.Expr:
    return tirx.const(-math.inf, shift.ty.dtype)
