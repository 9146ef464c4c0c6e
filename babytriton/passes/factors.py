"""Products of sizes, of which a call tells some."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

Extents = Sequence[int | ir.Expr]
"""What is multiplied: sizes, each of which may be a product."""


def has_at_most(extents: Extents, times: int, others: Extents) -> bool:
    """Whether loops surely have at most `times` the iterations of others, whatever a call tells.

    Args:
        extents: of the loops.
        times: a number.
        others: the extents of the others.
    """
    number, variables = _factors(extents)
    other, left = _factors(others)
    return number <= times * other and _without(left, variables) is not None


def are_as_many(extents: Extents, others: Extents) -> bool:
    """Whether two products are surely equal, whatever a call tells."""
    return (rest := quotient(extents, others)) is not None and _factors(rest) == (1, [])


def quotient(extents: Extents, others: Extents) -> Extents | None:
    """What is to be multiplied by others for a product; None if they do not divide it for sure."""
    number, variables = _factors(extents)
    other, divisors = _factors(others)
    left = _without(variables, divisors)
    if left is None or not other or number % other:
        return None
    return [number // other, *left]


def _factors(extents: Extents) -> tuple[int, list[ir.Expr]]:
    """What is multiplied for a product: a number, and what a call tells."""
    number = 1
    variables: list[ir.Expr] = []
    for extent in extents:
        if isinstance(extent, (int, tirx.IntImm)):
            number *= int(extent)
        elif isinstance(extent, tirx.Mul):
            more, others = _factors([extent.a, extent.b])
            number, variables = number * more, [*variables, *others]
        else:
            variables.append(extent)
    return number, variables


def _without(factors: Sequence[ir.Expr], others: Sequence[ir.Expr]) -> list[ir.Expr] | None:
    """What is left of some factors without others; None if these are not among them."""
    left = list(factors)
    for factor in others:
        same = next((n for n, x in enumerate(left) if tvm_ffi.structural_equal(x, factor)), None)
        if same is None:
            return None
        del left[same]
    return left
