"""Extents of axes: numbers, or what a call computes of the sizes that it tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.passes.gpu.writing import as_expr, number

Extent: TypeAlias = int | ir.Expr
Axis: TypeAlias = tuple[tirx.Var, Extent]


def product(extents: Iterable[Extent]) -> Extent:
    """How many points axes have together."""
    total: Extent = 1
    for extent in extents:
        if isinstance(total, int) and isinstance(extent, int):
            total *= extent
        else:
            total = as_expr(total) * as_expr(extent)
    return total


def known(extent: ir.Expr) -> Extent:
    """An extent, as a number if it is one."""
    found = sym.Analyzer().simplify(extent)
    return int(found) if isinstance(found, tirx.IntImm) else found


def is_multiple(extent: Extent, size: int) -> bool:
    """Whether an extent surely is a multiple of a number, whatever a call tells."""
    if isinstance(extent, int):
        return extent % size == 0
    found = sym.Analyzer().modular_set(extent)
    return int(found.coeff) % size == 0 and int(found.base) % size == 0


def parts(extent: Extent, size: Extent) -> Extent:
    """How many parts of a size there are, of which the last may have less."""
    return known(tirx.ceildiv(as_expr(extent), as_expr(size)))


def whole_parts(extent: Extent, size: Extent) -> Extent:
    """How many parts of a size there are that are whole."""
    if isinstance(extent, int) and isinstance(size, int):
        return extent // size
    return known(tirx.truncdiv(as_expr(extent), as_expr(size)))


def pieces(wanted: Extent, most: Extent) -> Extent:
    """How many pieces something is cut into: so many, if it has work for them; one at least."""
    return at_least_one(tirx.Min(as_expr(wanted), as_expr(most)))


def at_least_one(extent: Extent) -> Extent:
    """An extent, or 1 where a call tells that it is 0."""
    return known(tirx.Max(as_expr(extent), number(1)))


def position(variables: Sequence[ir.Expr], extents: Sequence[Extent]) -> ir.Expr:
    """The row-major number of a point."""
    total: ir.Expr = number(0)
    for variable, extent in zip(variables, extents):
        total = total * as_expr(extent) + variable
    return total


def split(place: ir.Expr, axes: Sequence[Axis]) -> dict[tirx.Var, ir.Expr]:
    """The point with a row-major number."""
    found: dict[tirx.Var, ir.Expr] = {}
    for n, (var, extent) in reversed(list(enumerate(axes))):
        divided, rest = tirx.floordiv, tirx.floormod
        if not isinstance(extent, int):
            # TVM does not know that sizes are not negative, and would ask which way to round.
            divided, rest = tirx.truncdiv, tirx.truncmod
        found[var] = place if n == 0 else rest(place, as_expr(extent))
        place = divided(place, as_expr(extent))
    return found


def put_together(expr: ir.Expr) -> ir.Expr:
    """An expression in which numbers are whole that are split, and counted together again."""
    return tvm_ffi.structural_map(expr, (tirx.Add, _whole))


def _whole(added: tirx.Add) -> ir.Expr:
    lines, rest = added.a, added.b
    for divided, left in ((tirx.FloorDiv, tirx.FloorMod), (tirx.Div, tirx.Mod)):
        if isinstance(rest, left) and isinstance(lines, tirx.Mul) and isinstance(lines.a, divided):
            pairs = ((lines.a.a, rest.a), (lines.a.b, rest.b), (lines.b, rest.b))
            if all(tvm_ffi.structural_equal(one, other) for one, other in pairs):
                return rest.a
    return added
