"""Logarithms, and what is computed from them; powers."""

from __future__ import annotations

import math

from tvm import ir, tirx

from babytriton.passes.cpu.formulas.exponentials import exp2_of_parts
from babytriton.passes.cpu.formulas.steps import (
    LEAST_NORMAL,
    LN2_HIGH,
    LN2_LOW,
    MANTISSA,
    ONE,
    Steps,
)

# Cephes' logf: log(1 + f) = f - f**2 / 2 + f**3 * P(f) for 1 + f between the roots of 1/2 and 2.
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_ROOT_OF_HALF = 0x3F3504F3  # its bits


def _parts(steps: Steps, x: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
    """e, f and log(1 + f) - f where x = 2**e * (1 + f)."""
    tiny = steps(x < steps.f(LEAST_NORMAL))
    normal = steps(tirx.Select(tiny, x * steps.f(2.0**MANTISSA), x))
    e, _, m = _split(steps, normal)
    exponent = steps(steps.cast("float32", e) - tirx.Select(tiny, steps.f(MANTISSA), steps.f(0.0)))
    f = steps(m - steps.f(1.0))
    return exponent, f, _rest(steps, f)


def _split(steps: Steps, x: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
    """e, the bits of 2**e without those of 1, and m where x = 2**e * m, for x no denormal."""
    bits = steps(steps.bits(x))
    e = steps(tirx.shift_right(bits - steps.i(_ROOT_OF_HALF), steps.i(MANTISSA)))
    power = steps(tirx.shift_left(e, steps.i(MANTISSA)))
    return e, power, steps(steps.from_bits(bits - power))


def _rest(steps: Steps, f: ir.Expr) -> ir.Expr:
    """log(1 + f) - f."""
    return steps(steps.polynomial(f, (*_LOG, -0.5)) * steps(f * f))


def _with_ends(steps: Steps, x: ir.Expr, value: ir.Expr) -> ir.Expr:
    """A logarithm of x, also where x is infinite, 0 or less."""
    value = steps(tirx.Select(tirx.EQ(x, steps.f(math.inf)), x, value))
    value = steps(tirx.Select(x > steps.f(0.0), value, steps.f(math.nan)))
    return steps(tirx.Select(tirx.EQ(x, steps.f(0.0)), steps.f(-math.inf), value))


def _log(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x) = e * log(2) + log(m) where x = 2**e * m."""
    return _with_ends(steps, x, _log_of_parts(steps, *_parts(steps, x)))


def _log_of_parts(steps: Steps, exponent: ir.Expr, f: ir.Expr, rest: ir.Expr) -> ir.Expr:
    rest = steps(steps.fma(exponent, steps.f(LN2_LOW), rest))
    return steps(steps.fma(exponent, steps.f(LN2_HIGH), steps(f + rest)))


def log(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x)."""
    return steps(_log(steps, steps(x)))


# Cephes' log2f and log10f: log2(e) - 1, and parts of log10(e) and log10(2), the first of few bits.
_LOG2_E_REST = 0.44269504088896340735992
_LOG10_E = 4.3359375e-1, 7.00731903251827651129e-4
_LOG10_2 = 3.0078125e-1, 2.48745663981195213739e-4


def log2(steps: Steps, x: ir.Expr) -> ir.Expr:
    """e + log2(m) where x = 2**e * m: exact for powers of 2."""
    x = steps(x)
    exponent, f, rest = _parts(steps, x)
    more = steps(rest * steps.f(_LOG2_E_REST) + f * steps.f(_LOG2_E_REST))
    return _with_ends(steps, x, steps(steps(more + rest) + f + exponent))


def log10(steps: Steps, x: ir.Expr) -> ir.Expr:
    """e * log10(2) + log10(m) where x = 2**e * m."""
    x = steps(x)
    exponent, f, rest = _parts(steps, x)
    value = steps((f + rest) * steps.f(_LOG10_E[1]) + rest * steps.f(_LOG10_E[0]))
    value = steps(value + f * steps.f(_LOG10_E[0]) + exponent * steps.f(_LOG10_2[1]))
    return _with_ends(steps, x, steps(value + exponent * steps.f(_LOG10_2[0])))


def log1p(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(1 + x) = e * log(2) + log(1 + f), where f has what rounding 1 + x loses."""
    return _log1p(steps, steps(x))


def _log1p(steps: Steps, x: ir.Expr) -> ir.Expr:
    u = steps(x + steps.f(1.0))  # no denormal
    lost = steps(x - (u - steps.f(1.0)))
    e, power, m = _split(steps, u)
    # 2**-e, or 0 where nothing is lost and it would have no such bits.
    inverse = steps(steps.from_bits(tirx.Max(steps.i(ONE) - power, steps.i(0))))
    f = steps(steps.fma(lost, inverse, m - steps.f(1.0)))
    value = _log_of_parts(steps, steps.cast("float32", e), f, _rest(steps, f))
    # Of numbers so small it is the number, zeros by their signs.
    return steps(tirx.Select(tirx.EQ(u, steps.f(1.0)), x, _with_ends(steps, u, value)))


# From here on sqrt(x**2 + 1) is x in float32, and log1p(x) is log(x).
_ROOT_IS_SAME = 2.0**30


def asinh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x + sqrt(x**2 + 1)) = log1p(x + x**2 / (1 + sqrt(x**2 + 1))), of abs(x)."""
    x = steps(x)
    size = steps(tirx.abs(x))
    square = steps(size * size)
    root = steps(tirx.sqrt(square + steps.f(1.0)))
    beyond = steps(size + square / (root + steps.f(1.0)))
    return steps(steps.with_sign_of(x, _log1p_or_log_of_double(steps, size, beyond)))


def acosh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x + sqrt(x**2 - 1)) = log1p(t + sqrt(2 * t + t**2)) with t = x - 1."""
    x = steps(x)
    t = steps(x - steps.f(1.0))
    beyond = steps(t + tirx.sqrt(t + t + t * t))
    value = _log1p_or_log_of_double(steps, x, beyond)
    return steps(tirx.Select(x < steps.f(1.0), steps.f(math.nan), value))


def _log1p_or_log_of_double(steps: Steps, x: ir.Expr, beyond: ir.Expr) -> ir.Expr:
    """log1p(beyond), or log(2 * x) where x is so large that both are the same."""
    is_large = steps(x >= steps.f(_ROOT_IS_SAME))
    value = _log1p(steps, steps(tirx.Select(is_large, x, beyond)))
    return steps(value + tirx.Select(is_large, steps.f(math.log(2)), steps.f(0.0)))


def atanh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log((1 + x) / (1 - x)) / 2 = log1p(2 * x / (1 - x)) / 2, of abs(x)."""
    x = steps(x)
    size = steps(tirx.abs(x))
    value = _log1p(steps, steps((size + size) / (steps.f(1.0) - size)))
    return steps(steps.with_sign_of(x, steps(value * steps.f(0.5))))


# log2(1 + f) = f * P(f) for 1 + f between the roots of 1/2 and 2, to 1.1e-10 of it: the polynomial
# of this degree whose greatest relative error is the least.
_LOG2_OVER = (
    -8.634602741579772e-2,
    1.5485755480522043e-1,
    -1.569822587420133e-1,
    1.5900149210381154e-1,
    -1.790469519486991e-1,
    2.0609625657594186e-1,
    -2.4050417417511136e-1,
    2.8854064355495673e-1,
    -3.6067280054490186e-1,
    4.808983207293583e-1,
    -7.213475252132276e-1,
    1.4426950409393466,
)
_BEYOND = 200.0  # 2 to this power is infinite in float32, and to minus this power 0


def _log2_wide(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log2(x) of a positive number in float64, to 1.1e-10 of it."""
    tiny = steps(x < steps.f(LEAST_NORMAL))
    e, _, m = _split(steps, steps(tirx.Select(tiny, x * steps.f(2.0**MANTISSA), x)))
    exponent = steps(steps.wide(e - tirx.Select(tiny, steps.i(MANTISSA), steps.i(0))))
    f = steps(steps.wide(m) - steps.d(1.0))
    return steps(steps.fma(steps.polynomial(f, _LOG2_OVER, "float64"), f, exponent))


def _exp2_of_wide(steps: Steps, t: ir.Expr) -> ir.Expr:
    """2**t in float32, of a float64 between -_BEYOND and _BEYOND."""
    n = steps(steps.rounded(t))
    return exp2_of_parts(steps, steps.cast("float32", n), steps(steps.cast("float32", t - n)))


def pow(steps: Steps, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """2**(y * log2(abs(x))) in float64, and the sign and the special values of C's pow."""
    x, y = steps(x), steps(y)
    size = steps(tirx.abs(x))
    log2 = steps(_log2_wide(steps, size))
    log2 = steps(tirx.Select(tirx.EQ(size, steps.f(0.0)), steps.d(-math.inf), log2))
    log2 = steps(tirx.Select(tirx.EQ(size, steps.f(math.inf)), steps.d(math.inf), log2))
    t = steps(steps.wide(y) * log2)
    t = steps(tirx.Min(tirx.Max(t, steps.d(-_BEYOND)), steps.d(_BEYOND)))
    value = _exp2_of_wide(steps, t)
    is_whole = steps(tirx.EQ(tirx.floor(y), y))
    half = steps(y * steps.f(0.5))
    is_odd = steps(tirx.And(is_whole, tirx.NE(tirx.floor(half), half)))
    negative = steps(steps.bits(x) < steps.i(0))
    value = steps(tirx.Select(tirx.And(negative, is_odd), value * steps.f(-1.0), value))
    is_root = tirx.And(tirx.And(x < steps.f(0.0), x > steps.f(-math.inf)), tirx.Not(is_whole))
    undefined = tirx.Or(is_root, tirx.Or(tirx.isnan(x), tirx.isnan(y)))
    value = steps(tirx.Select(undefined, steps.f(math.nan), value))
    # (-1) ** inf is 1 too.
    endless = tirx.And(tirx.EQ(size, steps.f(1.0)), tirx.EQ(tirx.abs(y), steps.f(math.inf)))
    is_one = tirx.Or(tirx.Or(tirx.EQ(y, steps.f(0.0)), tirx.EQ(x, steps.f(1.0))), endless)
    return steps(tirx.Select(is_one, steps.f(1.0), value))
