"""How the numbers of a walk are combined, so that threads may share it.

All are associative. What is combined may have several parts: a running maximum has the place of it
beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.ops import numerics

State = Sequence[ir.Expr]
Join = Callable[[State, State], list[ir.Expr]]

COMBINES = {"add": (tirx.Add, 0), "mul": (tirx.Mul, 1)}
"""Operators on two numbers, and what changes none: how sums and products are combined."""

_EXTREMES = {"max": tirx.Max, "min": tirx.Min}

_VALUE, _PLACE, _SUM, _TOP = "", "_place", "_sum", "_top"


@dataclass(frozen=True)
class Operator:
    """One of them.

    Attributes:
        parts: of what is combined: the endings of their names.
        starts: what changes nothing that comes after it.
        join: two as one, of which the first comes first; parts in order, each of which depends on
            itself and on later ones.
        mix: the same of two whose numbers may lie among each other.
        reads_once: whether that has each part in one place alone.
    """

    parts: tuple[str, ...]
    starts: tuple[ir.Expr, ...]
    join: Join
    mix: Join
    reads_once: bool = False

    @property
    def dtypes(self) -> list[str]:
        """Of the parts."""
        return [str(start.ty.dtype) for start in self.starts]

    def cast(self, state: State) -> list[ir.Expr]:
        """What another one of the same parts has, in the dtypes of this one."""
        return [part.astype(dtype) for part, dtype in zip(state, self.dtypes)]

    def lifted(self, x: ir.Expr, place: ir.Expr) -> list[ir.Expr]:
        """What a single number is, as parts.

        Args:
            x: the number.
            place: where it is.
        """
        of_part = {_PLACE: place, _SUM: tirx.const(1, "float32")}
        return self.cast([of_part.get(part, x) for part in self.parts])

    def result(self, kind: str, state: State) -> ir.Expr:
        """What a walk stores.

        Args:
            kind: "value" or "place".
            state: what it has up to there.
        """
        of_part = dict(zip(self.parts, state))
        if kind == "place":
            return of_part[_PLACE]
        if _SUM not in of_part:
            return of_part[_VALUE]
        total = of_part[_SUM]
        return tirx.log(total) + of_part[_TOP].astype(total.ty.dtype)


def operator_of(
    kind: str, source: str, dtype: str, has_places: bool, length: int | ir.Expr
) -> Operator:
    """How numbers are combined.

    Args:
        kind: "add", "mul", "max", "min" or "logaddexp".
        source: the dtype of the numbers.
        dtype: to combine them in.
        has_places: whether the places of extremes are told as well.
        length: how many there are.
    """
    if kind in COMBINES:
        combine, neutral = COMBINES[kind]
        return _plain(combine, tirx.const(neutral, dtype))
    if kind == "logaddexp":
        return _logaddexp(source if source == "float64" else "float32", dtype)
    return _extreme(kind, source, has_places, length)


def _plain(combine: Callable[[ir.Expr, ir.Expr], ir.Expr], start: ir.Expr) -> Operator:
    """One on numbers alone."""

    def join(first: State, second: State) -> list[ir.Expr]:
        return [combine(*first, *second)]

    return Operator((_VALUE,), (start,), join, join, isinstance(combine, type))


def _extreme(kind: str, dtype: str, has_places: bool, length: int | ir.Expr) -> Operator:
    """The largest or smallest number, and the last place where that is; or where the last NaN is.

    Without places, and where others may lie among them, zeros of both signs are one number.
    """
    is_float = numerics.is_float(tirx.const(0, dtype))
    # Narrow numbers are compared as wider ones, which all of them are.
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(dtype, dtype)
    limit = tirx.max_value(wide) if kind == "min" else tirx.min_value(wide)
    if is_float:
        limit = tirx.const(math.inf if kind == "min" else -math.inf, wide)
    if not (has_places or is_float):
        return _plain(_EXTREMES[kind], limit)

    def takes(own: ir.Expr, other: ir.Expr) -> ir.Expr:
        """Whether one that comes after another is an extreme."""
        found = own <= other if kind == "min" else own >= other
        return tirx.Or(found, numerics.isnan(own)) if is_float else found

    def later(first: ir.Expr, second: ir.Expr) -> ir.Expr:
        return tirx.Select(takes(second, first), second, first)

    if not has_places:
        return _plain(later, limit)

    def join(first: State, second: State) -> list[ir.Expr]:
        is_second = takes(second[1], first[1])
        return [tirx.Select(is_second, *parts) for parts in zip(second, first)]

    def mix(first: State, second: State) -> list[ir.Expr]:
        (place, value), (other_place, other) = first, second
        last = tirx.Select(takes(value, other), tirx.max(place, other_place), other_place)
        return [tirx.Select(takes(other, value), last, place), later(value, other)]

    # TVM counts in 64 bits what a call tells.
    index = "int32" if isinstance(length, int) and length < 2**31 else "int64"
    return Operator((_PLACE, _VALUE), (tirx.const(0, index), limit), join, mix)


def _logaddexp(dtype: str, wide: str) -> Operator:
    """The logarithm of a sum of exponentials: that of the largest, and the sum of the others by it.

    A NaN makes the sum NaN. Of two infinities of one sign the difference would be NaN.

    Args:
        dtype: of the largest.
        wide: of the sum.
    """

    def join(first: State, second: State) -> list[ir.Expr]:
        (total, top), (other_total, other) = first, second
        one = tirx.const(1, dtype)
        share = tirx.Select(tirx.EQ(top, other), one, tirx.exp(-tirx.abs(top - other)))
        share = share.astype(wide)
        lower = total * share + other_total, total + other_total * share
        return [tirx.Select(top < other, *lower), tirx.max(top, other)]

    starts = tirx.const(0, wide), tirx.const(-math.inf, dtype)
    return Operator((_SUM, _TOP), starts, join, join)
