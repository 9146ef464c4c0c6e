"""Positions in memory, taken apart: the indices of tensors that are accessed in another shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.passes.factors import Extents, are_as_many, quotient


def in_one_piece(buffer: tirx.Var, indices: list[ir.Expr]) -> list[ir.Expr]:
    """The row-major position along the last axes, where the indices are that position, taken apart.

    So a tensor of another shape with the same elements is accessed. TVM does not see that of all
    such positions in vectors, and would lower each division; with symbolic sizes it takes seconds
    for some.
    """
    if len(indices) < 2 or not isinstance(indices[-1], tirx.FloorMod):
        return indices
    simplify = sym.Analyzer().simplify
    position = _Digit.of(simplify(indices[-1])).position
    below: Extents = []
    for place in range(len(indices) - 1, -1, -1):
        digit = _Digit.of(simplify(indices[place]))
        is_of_it = tvm_ffi.structural_equal(digit.position, position)
        if not is_of_it or not are_as_many(digit.divisor, below):
            return indices
        # What is left may be less than a dimension's size. A remainder along the first of these
        # axes is no position: it may begin again.
        if digit.modulus is None:
            zeros = [tirx.const(0, index.ty.dtype) for index in indices[place + 1 :]]
            return [*indices[:place], *zeros, position]
        if not are_as_many(digit.modulus, [buffer.shape[place]]):
            return indices
        below = [*below, buffer.shape[place]]
    return indices


@dataclass(frozen=True)
class _Digit:
    """A position without what is below, and above, one axis.

    Attributes:
        position: that.
        divisor: it is divided by.
        modulus: of the quotient; None for all of it.
    """

    position: ir.Expr
    divisor: Extents = ()
    modulus: Extents | None = None

    @classmethod
    def of(cls, index: ir.Expr) -> _Digit:
        """An index in that form; a position is itself where it is none of a form that is known."""
        if not isinstance(index, (tirx.FloorDiv, tirx.FloorMod)):
            return cls(index)
        inner, by = cls.of(index.a), [index.b]
        if isinstance(index, tirx.FloorMod):
            # (p % (m * n)) % m is p % m.
            is_plain = inner.modulus is None or quotient(inner.modulus, by) is not None
            return replace(inner, modulus=by) if is_plain else cls(index)
        divisor = [*inner.divisor, *by]
        if inner.modulus is None:
            return replace(inner, divisor=divisor)
        # (p % (m * n)) // n is (p // n) % m.
        rest = quotient(inner.modulus, by)
        return cls(index) if rest is None else cls(inner.position, divisor, rest)
