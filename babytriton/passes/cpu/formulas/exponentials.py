"""Exponentials, and what is computed from them; the error function."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import ir, tirx

from babytriton.passes.cpu.formulas.steps import (
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    MANTISSA,
    ONE,
    ROUND,
    ROUND_BITS,
    Steps,
)

# exp(r) for |r| <= log(2) / 2, to 3.6e-9 of it: the polynomial of this degree, ending in 1 + r,
# whose greatest relative error is the least.
_EXP = (
    1.3814539416e-3,
    8.3687445149e-3,
    4.1668385267e-2,
    1.6666521132e-1,
    4.9999994040e-1,
    1.0,
    1.0,
)
_EXPONENT_OF_ONE = ONE >> MANTISSA
# Of these exp is 0 and infinite; 2**n, in two factors, is still representable.
_LEAST, _GREATEST = -104.0, 89.0
# As these for powers of 2.
_LEAST_POWER, _GREATEST_POWER = -151.0, 128.5


def _exp(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x) = 2**n * exp(r) where x = n * log(2) + r."""

    def of(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        return _near_one(steps, steps(tirx.Min(steps.f(_GREATEST), x)))

    return _unless_zero(steps, x, _LEAST, of)


def _unless_zero(
    steps: Steps, x: ir.Expr, least: float, of: Callable[[ir.Expr], tuple[ir.Expr, ir.Expr]]
) -> ir.Expr:
    """What is computed from x, and 0 where x is less than a number.

    No result is rounded to 0, as that of each masked score would be: that takes Intel's processors
    fifteen times as long.

    Args:
        steps: of the formula.
        x: a number.
        least: from which on results are not 0.
        of: gives a factor for x, and n + ROUND, of whose power of 2 the result is a multiple.
    """
    is_zero, zero = x < steps.f(least), steps.f(0.0)
    if steps.has_scaling:  # 0 times whatever power is 0
        near_one, shifted = of(x)
        return _times_power(steps, steps(tirx.Select(is_zero, zero, near_one)), shifted)
    found = _times_power(steps, *of(steps(tirx.Select(is_zero, zero, x))))
    return steps(tirx.Select(is_zero, zero, found))


def _half_exp(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x) / 2, which may be representable where exp(x) is too large."""
    # Half of exp is infinite a little later: log(2) after it.
    inside = steps(steps.within(x, _LEAST, _GREATEST + 1))
    near_one, shifted = _near_one(steps, inside)
    return _times_power(steps, near_one, steps(shifted - steps.f(1.0)))


def _exp_at_most_one(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x) of numbers that are not positive.

    Without an instruction that scales by way of 2**64 * exp(x), which is no denormal: the bits of
    `shifted` are the exponent of that, and others that the shift pushes out.
    """
    if steps.has_scaling:
        return _unless_zero(steps, x, _LEAST, lambda x: _near_one(steps, x))
    is_zero, zero = x < steps.f(_LEAST), steps.f(0.0)
    inside = steps(tirx.Select(is_zero, zero, x))
    near_one, shifted = _near_one(steps, inside, _EXPONENT_OF_ONE + 64)
    power = tirx.shift_left(steps.bits(shifted), steps.i(MANTISSA))
    found = steps(steps(near_one * steps.from_bits(power)) * steps.f(2.0**-64))
    return steps(tirx.Select(is_zero, zero, found))


def _near_one(steps: Steps, x: ir.Expr, more: int = 0) -> tuple[ir.Expr, ir.Expr]:
    """exp(r), and n + more + ROUND, where x = n * log(2) + r."""
    _, r, shifted = _reduced(steps, x, more)
    return _exp_of_small(steps, r), shifted


def _reduced(steps: Steps, x: ir.Expr, more: int) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
    """n, r, and n + more + ROUND, where x = n * log(2) + r."""
    shifted = steps(steps.fma(x, steps.f(LOG2_E), steps.f(ROUND + more)))
    n = steps(shifted - steps.f(ROUND + more))
    r = steps(steps.fma(n, steps.f(-LN2_HIGH), x))
    return n, steps(steps.fma(n, steps.f(-LN2_LOW), r)), shifted


def _exp_of_small(steps: Steps, r: ir.Expr) -> ir.Expr:
    return steps(steps.polynomial(r, _EXP))


def _times_power(steps: Steps, value: ir.Expr, shifted: ir.Expr) -> ir.Expr:
    """The value times 2**n, of n + ROUND.

    In two factors: one may be too small or too large. The bits of `shifted` are n, and others above
    that the shifts push out.
    """
    bits = steps(steps.bits(shifted))
    if steps.has_scaling:
        return steps(steps.scaled(value, steps(bits - steps.i(ROUND_BITS))))
    half = steps(tirx.shift_right(bits, steps.i(1)))
    first = tirx.shift_left(half, steps.i(MANTISSA)) + steps.i(ONE)
    second = tirx.shift_left(bits - half, steps.i(MANTISSA)) + steps.i(ONE)
    return steps(value * steps.from_bits(first) * steps.from_bits(second))


def exp2(steps: Steps, x: ir.Expr) -> ir.Expr:
    """2**x."""

    def of(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        inside = steps(tirx.Min(steps.f(_GREATEST_POWER), x))
        shifted = steps(inside + steps.f(ROUND))
        r = steps(inside - (shifted - steps.f(ROUND)))
        return _exp2_of_small(steps, r), shifted

    return _unless_zero(steps, steps(x), _LEAST_POWER, of)


def exp2_of_parts(steps: Steps, n: ir.Expr, r: ir.Expr) -> ir.Expr:
    """2**(n + r) = 2**n * exp(r * log(2)), of a whole number up to 250 and at most a half."""
    return _times_power(steps, _exp2_of_small(steps, r), steps(n + steps.f(ROUND)))


def _exp2_of_small(steps: Steps, r: ir.Expr) -> ir.Expr:
    return _exp_of_small(steps, steps(r * steps.f(math.log(2))))


def exp(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x)."""
    return _exp(steps, steps(x))


# From here down exp(x) - 1 is -1, and from there up infinite, in float32.
_IS_MINUS_ONE, _IS_INFINITE = -18.0, 89.0


def expm1(steps: Steps, x: ir.Expr) -> ir.Expr:
    """2**n * (exp(r) - 1) + 2**n - 1 where x = n * log(2) + r, twice a half of that.

    The bits of `shifted` are the exponent of 2**(n - 1), and others that the shift pushes out.
    """
    inside = steps(steps.within(steps(x), _IS_MINUS_ONE, _IS_INFINITE))
    n, r, shifted = _reduced(steps, inside, _EXPONENT_OF_ONE - 1)
    is_near = tirx.EQ(n, steps.f(0.0))
    r = steps(tirx.Select(is_near, inside, r))  # with the sign of a zero
    near = steps(steps.polynomial(r, _EXP[:-1]) * r)
    half = steps(steps.from_bits(tirx.shift_left(steps.bits(shifted), steps.i(MANTISSA))))
    far = steps(steps.fma(half, near, half - steps.f(0.5)) * steps.f(2.0))
    return steps(tirx.Select(is_near, near, far))


def sigmoid(steps: Steps, x: ir.Expr) -> ir.Expr:
    """1 / (1 + exp(-x)), by exp(-abs(x)), which does not overflow where the result is tiny."""
    x = steps(x)
    negative = tirx.bitwise_or(steps.bits(x), steps.i(-(2**31)))
    e = _exp_at_most_one(steps, steps(steps.from_bits(negative)))
    over = steps(tirx.Select(x < steps.f(0.0), e, steps.f(1.0)))
    return steps(over / (steps.f(1.0) + e))


# Rational minimax approximation of tanh(x) / x in x**2, as used by Eigen 3.4 and XLA.
_TANH_OVER = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-8,
    1.48572235717979e-5,
    6.37261928875436e-4,
    4.89352455891786e-3,
)
_TANH_UNDER = (1.19825839466702e-6, 1.18534705686654e-4, 2.26843463243900e-3, 4.89352518554385e-3)
_TANH_IS_ONE = 7.99881172180175781
_TANH_IS_X = 4e-4


def tanh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """x, near zero, and a rational function elsewhere."""
    x = steps(x)
    inside = steps(steps.within(x, -_TANH_IS_ONE, _TANH_IS_ONE))
    square = steps(inside * inside)
    over = steps(inside * steps.polynomial(square, _TANH_OVER))
    far = steps(over / steps.polynomial(square, _TANH_UNDER))
    return steps(tirx.Select(tirx.abs(x) < steps.f(_TANH_IS_X), x, far))


# Cephes' sinhf: sinh(x) = x + x**3 * P(x**2) for |x| < 1.
_SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)


def sinh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """A polynomial near zero, and the difference of exponentials elsewhere."""
    x = steps(x)
    size = steps(tirx.abs(x))
    square = steps(size * size)
    near = steps(steps.fma(steps.polynomial(square, _SINH) * square, size, size))
    half = _half_exp(steps, size)
    far = steps(half - steps.f(0.25) / half)
    return steps(steps.with_sign_of(x, steps(tirx.Select(size < steps.f(1.0), near, far))))


def cosh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """The mean of exp(x) and exp(-x)."""
    half = _half_exp(steps, steps(tirx.abs(steps(x))))
    return steps(half + steps.f(0.25) / half)


# Rational minimax approximation of erf(x) / x in x**2, as used by Eigen 3.4 and XLA.
_ERF_OVER = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_UNDER = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)
_SQUARE_WHERE_ERF_IS_ONE = 14.688108808


def erf(steps: Steps, x: ir.Expr) -> ir.Expr:
    """x * P(x**2) / Q(x**2), and beyond 1 a multiple of x that is more, cut to 1."""
    x = steps(x)
    square = steps(tirx.Min(steps.f(_SQUARE_WHERE_ERF_IS_ONE), x * x))
    over = steps(x * steps.polynomial(square, _ERF_OVER))
    ratio = steps(over / steps.polynomial(square, _ERF_UNDER))
    return steps(steps.within(ratio, -1.0, 1.0))


# As erf(x / sqrt(2)) / 2.
_NORMAL_OVER = tuple(
    c * math.sqrt(1 / 8) * 2.0**-n for n, c in zip(reversed(range(len(_ERF_OVER))), _ERF_OVER)
)
_NORMAL_UNDER = tuple(c * 2.0**-n for n, c in zip(reversed(range(len(_ERF_UNDER))), _ERF_UNDER))


def normcdf(steps: Steps, x: ir.Expr) -> ir.Expr:
    """(1 + erf(x / sqrt(2))) / 2, the normal distribution up to x."""
    x = steps(x)
    square = steps(tirx.Min(steps.f(2 * _SQUARE_WHERE_ERF_IS_ONE), x * x))
    over = steps(x * steps.polynomial(square, _NORMAL_OVER))
    ratio = steps(over / steps.polynomial(square, _NORMAL_UNDER))
    return steps(steps.within(ratio, -0.5, 0.5) + steps.f(0.5))


# (1 + 2 * x) * exp(x**2) * erfc(x) in (x - 3) / (x + 3), to 2.9e-9 of it for x from 0 to 10.1: the
# polynomial with its values at the zeros of a Chebyshev polynomial. The form is that of M. Shepherd
# and J. Laframboise, Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < inf, 1981.
_ERFC = (
    -0.0002773269222233205,
    -0.0007983391415426612,
    0.0019944745913543795,
    0.002579434684940475,
    -0.02379023428217967,
    0.06829350976215444,
    -0.11927265270268238,
    0.12964657564436363,
    -0.04756228053505264,
    -0.13562114337320352,
    1.2530080578307996,
)
# From here on erfc is 0 in float32.
_ERFC_IS_ZERO = 10.1


def erfc(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(-x**2) * P / (1 + 2 * x) for x that is not negative, and 2 less that of -x for others.

    Of the square the part that counts is exact: that of the high bits of x, which has no more
    digits than fit. The rest is small.
    """
    x = steps(x)
    size = steps(tirx.Min(steps.f(_ERFC_IS_ZERO), tirx.abs(x)))
    high = steps(steps.from_bits(tirx.bitwise_and(steps.bits(size), steps.i(-(1 << 12)))))
    rest = steps((high - size) * (high + size))
    near_one = steps.polynomial(rest, (1 / 24, 1 / 6, 1 / 2, 1.0, 1.0))
    power = steps(_exp_at_most_one(steps, steps(steps.f(0.0) - steps(high * high))) * near_one)
    place = steps((size - steps.f(3.0)) / (size + steps.f(3.0)))
    ratio = steps(steps.polynomial(place, _ERFC) / (steps.f(1.0) + steps.f(2.0) * size))
    found = steps(power * ratio)
    return steps(tirx.Select(x < steps.f(0.0), steps(steps.f(2.0) - found), found))


def rsqrt(steps: Steps, x: ir.Expr) -> ir.Expr:
    """Both of its operations round correctly, and processors have them for vectors."""
    return steps(steps.f(1.0) / tirx.sqrt(x))
