"""Remainders of divisions."""

from __future__ import annotations

import math

from tvm import ir, tirx

from babytriton.passes.cpu.formulas.steps import Steps

# Up to which a quotient's integer part, in float64, is at most one too large.
_GREATEST_QUOTIENT = 2.0**50


def fmod(steps: Steps, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """What is left of x after whole multiples of y, with the sign of x: the C library's."""
    return tirx.truncmod(x, y)


def small_fmod(steps: Steps, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """fmod(x, y) where the quotient is not beyond.

    The difference of x and a multiple of y is a multiple of the last bit of either, and exact with
    one rounding; where the multiple is one too large, it has the other sign.
    """
    x, y = steps(x), steps(y)
    wide, size = steps(steps.wide(tirx.abs(x))), steps(steps.wide(tirx.abs(y)))
    times = steps(tirx.trunc(wide / size))
    rest = steps(steps.fma(times * steps.d(-1.0), size, wide))
    rest = steps(tirx.Select(rest < steps.d(0.0), rest + size, rest))
    value = steps(steps.cast("float32", rest))
    is_whole = tirx.And(tirx.EQ(tirx.abs(y), steps.f(math.inf)), tirx.abs(x) < steps.f(math.inf))
    return steps(steps.with_sign_of(x, steps(tirx.Select(is_whole, tirx.abs(x), value))))


def is_beyond(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """Whether a quotient is too large for small_fmod."""
    return tirx.abs(x) > tirx.abs(y) * tirx.const(_GREATEST_QUOTIENT, y.ty.dtype)
