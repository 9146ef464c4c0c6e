"""Loops that combine values into one: sums, products, maxima and minima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.frontend.kernel.program import (
    Assign,
    Branch,
    Loop,
    Statement,
    Update,
    has,
    is_local,
    variables,
)
from babytriton.frontend.kernel.scalars import loads
from babytriton.ops import numerics


@dataclass(frozen=True, eq=False)
class Reduction:
    """A nest whose only statement is ``target = target (+) operand``.

    Attributes:
        spatial: the loops that the target depends on.
        reduced: the others.
        target: the assignment.
        kind: as in :class:`Update`.
        operand: what is combined. Maxima and minima of floats are those of integers that order
            as the floats do: TVM's own drop the NaN that Python would keep, and start at the
            largest finite number.
    """

    spatial: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    target: Assign
    kind: str
    operand: ir.Expr
    has_keys: bool

    @property
    def dtype(self) -> str:
        """What values are combined in."""
        return str(self.operand.ty.dtype)

    @property
    def identity(self) -> ir.Expr:
        """What combines with any value to that value."""
        return _identity(self.kind, self.dtype)

    def step(self, old: ir.Expr) -> ir.Expr:
        """One step of the combination."""
        return _STEPS[self.kind](old, self.operand)

    def can_start_with(self, value: ir.Expr) -> bool:
        """Whether the first value changes nothing."""
        if self.kind not in ("sum", "product") or not hasattr(value, "value"):
            return False
        return bool(float(value.value) == (0 if self.kind == "sum" else 1))


def reduction_of(
    nest: Sequence[Loop], body: Sequence[Statement], free: Sequence[Loop]
) -> Reduction | None:
    """The reduction that a nest is, if it is one.

    Args:
        nest: perfectly nested loops of constant extents.
        body: of the innermost; an update, perhaps under a condition.
        free: the loops whose iterations are independent.
    """
    mask: ir.Expr | None = None
    if len(body) == 1 and isinstance(body[0], Branch) and not body[0].otherwise:
        mask, body = body[0].condition, body[0].then
    if len(body) != 1 or not isinstance(body[0], Assign) or body[0].update is None:
        return None
    target, update = body[0], body[0].update
    spatial = tuple(loop for loop in nest if loop in free)
    reduced = tuple(loop for loop in nest if loop not in free)
    used = [var for expr in target.indices for var in variables(expr)]
    read = [x.source for expr in (update.operand, mask) if expr is not None for x in loads(expr)]
    moved = [x.source for expr in target.indices for x in loads(expr)]
    if not reduced or moved or any(has(used, loop.var) for loop in reduced):
        return None
    if has(read, target.buffer) or any(is_local(x) for x in read):
        return None
    return _reduction(spatial, reduced, target, update, mask)


def _reduction(
    spatial: tuple[Loop, ...],
    reduced: tuple[Loop, ...],
    target: Assign,
    update: Update,
    mask: ir.Expr | None,
) -> Reduction:
    operand, kind = update.operand, update.kind
    has_keys = kind in ("max", "min") and numerics.is_float(operand)
    if has_keys:
        # Python's max(old, new) keeps the old one where the new is NaN: NaN loses.
        operand = numerics.order_key(operand, nan="min" if kind == "max" else "max")
    elif kind in ("max", "min") and str(operand.ty.dtype) in ("int8", "int16", "uint8"):
        operand = tirx.Cast("int32", operand)
    if mask is not None:
        dtype = str(operand.ty.dtype)
        nothing = _identity(kind, dtype)
        if kind == "sum" and numerics.is_float(operand):
            nothing = tirx.const(-0.0, dtype)  # -0.0 + 0.0 would be 0.0
        operand = tirx.if_then_else(mask, operand, nothing)
    return Reduction(spatial, reduced, target, kind, operand, has_keys)


def combine(reduction: Reduction, old: ir.Expr, value: ir.Expr, dtype: str) -> ir.Expr:
    """The target's old value combined with the reduced one, in the target's dtype."""
    if reduction.has_keys:
        wide = "float64" if reduction.dtype == "int64" else "float32"
        value = numerics.from_order_key(value, wide)
        first = _as(wide, old)
        beyond = tirx.GT(value, first) if reduction.kind == "max" else tirx.LT(value, first)
        return _as(dtype, tirx.Select(beyond, value, first))
    return _as(dtype, _STEPS[reduction.kind](_as(reduction.dtype, old), value))


def _as(dtype: str, value: ir.Expr) -> ir.Expr:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _identity(kind: str, dtype: str) -> ir.Expr:
    if kind == "max":
        return tirx.min_value(dtype)
    if kind == "min":
        return tirx.max_value(dtype)
    return tirx.const(0 if kind == "sum" else 1, dtype)


_STEPS = {"sum": tirx.Add, "product": tirx.Mul, "max": tirx.Max, "min": tirx.Min}
