"""Sines, tangents, and their inverses."""

from __future__ import annotations

import math

from tvm import ir, tirx

from babytriton.passes.cpu.formulas.steps import ROUND, Steps

# 2**s * 2 / pi modulo 4 for s = 0, 24, ... 96, each as four numbers of at most 29 bits: their
# products with a float32 are exact in float64 (Payne and Hanek's reduction).
_TWO_OVER_PI = (
    ("0x1.45f306cp-1", "0x1.c9c882ap-29", "0x1.4fe13a8p-59", "0x1.f47d4d3p-86"),
    ("0x1.b72722p+1", "0x1.529fc27p-28", "0x1.5f47d4cp-58", "0x1.377036dp-86"),
    ("0x1.529fc2p-4", "0x1.d5f47d4p-30", "0x1.a6ee06cp-59", "0x1.b14acc8p-87"),
    ("0x1.3abe8fp-3", "0x1.534ddcp-28", "0x1.b6c52b3p-57", "0x1.3c43904p-88"),
    ("0x1.f534ddcp+0", "0x1.b6c52ap-33", "0x1.3278872p-57", "0x1.07f9450p-90"),
)
_BAND = 24  # bits
# From here on a float32 is a whole multiple of 2**24.
_SECOND_BAND = 2.0**47
# Cephes' sinf and cosf: sin(r) = r + r**3 * P(r**2), cos(r) = 1 - r**2 / 2 + r**4 * P(r**2).
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def _quadrant(steps: Steps, x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The number q, modulo 4, of quarter turns in x, and what is left of x in float32."""
    size = steps(tirx.abs(x))
    whole = steps(steps.wide(x))
    parts = [steps.d(float.fromhex(part)) for part in _TWO_OVER_PI[0]]
    for band, constants in enumerate(_TWO_OVER_PI[1:]):
        beyond = steps(size >= steps.f(_SECOND_BAND * 2.0 ** (_BAND * band)))
        scaled = steps.wide(x) * steps.d(2.0 ** (-_BAND * (band + 1)))
        whole = steps(tirx.Select(beyond, scaled, whole))
        parts = [
            steps(tirx.Select(beyond, steps.d(float.fromhex(constant)), part))
            for constant, part in zip(constants, parts)
        ]
    turns, rest = steps.d(0.0), steps.d(0.0)
    for part in parts:
        # Whole turns are left out, the nearest quarters counted, and what is between them kept.
        product = steps(whole * part)
        product = steps(product - steps.rounded(product * steps.d(0.25)) * steps.d(4.0))
        quarters = steps(steps.rounded(product))
        rest = steps(rest + (product - quarters))
        more = steps(steps.rounded(rest))
        rest = steps(rest - more)
        turns = steps(turns + quarters + more)
    return steps(steps.cast("int32", turns)), steps(
        steps.cast("float32", rest * steps.d(math.pi / 2))
    )


# Up to which _small_quadrant counts quarter turns rightly, and they have few enough bits.
_GREATEST_SMALL = 2.0**19
# A quarter turn in three parts of 24 bits each.
_QUARTERS = ("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50")


def _small_quadrant(steps: Steps, x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """As _quadrant, of arguments up to _GREATEST_SMALL (Cody and Waite's reduction).

    With multiply-adds of one rounding the first part is exact: what is left is a multiple of the
    last bit of the quarter turn, and less than one.
    """
    shifted = steps(steps.fma(x, steps.f(2 / math.pi), steps.f(ROUND)))
    turns = steps(shifted - steps.f(ROUND))
    rest = x
    for part in _QUARTERS:
        rest = steps(steps.fma(turns, steps.f(-float.fromhex(part)), rest))
    # The low bits of `shifted` are the number's.
    return steps(steps.bits(shifted)), rest


def is_beyond(x: ir.Expr) -> ir.Expr:
    """Whether an argument is too large for _small_quadrant."""
    return tirx.abs(x) > tirx.const(_GREATEST_SMALL, x.ty.dtype)


def _waves(steps: Steps, r: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The sine and the cosine of what is left of quarter turns."""
    square = steps(r * r)
    sine = steps(steps.polynomial(square, _SIN) * square * r + r)
    cosine = steps.polynomial(square, _COS) * square * square - square * steps.f(0.5) + steps.f(1.0)
    return sine, steps(cosine)


def _is_zero(steps: Steps, quadrant: ir.Expr, bit: int) -> ir.Expr:
    return tirx.EQ(tirx.bitwise_and(quadrant, steps.i(bit)), steps.i(0))


def _wave(steps: Steps, quadrant: ir.Expr, r: ir.Expr) -> ir.Expr:
    """The sine of r after a number of quarter turns."""
    sine, cosine = _waves(steps, r)
    value = steps(tirx.Select(_is_zero(steps, quadrant, 1), sine, cosine))
    return steps(tirx.Select(_is_zero(steps, quadrant, 2), value, value * steps.f(-1.0)))


def _slope(steps: Steps, quadrant: ir.Expr, r: ir.Expr) -> ir.Expr:
    """The tangent of r after a number of quarter turns."""
    sine, cosine = _waves(steps, r)
    is_even = _is_zero(steps, quadrant, 1)
    over = steps(tirx.Select(is_even, sine, cosine))
    under = steps(tirx.Select(is_even, cosine, sine * steps.f(-1.0)))
    return steps(over / under)


def _if_finite(steps: Steps, x: ir.Expr, value: ir.Expr) -> ir.Expr:
    return steps(tirx.Select(tirx.abs(x) < steps.f(math.inf), value, steps.f(math.nan)))


def sin(steps: Steps, x: ir.Expr) -> ir.Expr:
    """sin(x), which is -0.0 at -0.0."""
    x = steps(x)
    value = _if_finite(steps, x, _wave(steps, *_quadrant(steps, x)))
    return tirx.Select(tirx.EQ(x, steps.f(0.0)), x, value)


def cos(steps: Steps, x: ir.Expr) -> ir.Expr:
    """cos(x), the sine a quarter turn later."""
    x = steps(x)
    quadrant, r = _quadrant(steps, x)
    return _if_finite(steps, x, _wave(steps, steps(quadrant + steps.i(1)), r))


def tan(steps: Steps, x: ir.Expr) -> ir.Expr:
    """tan(x), which is -0.0 at -0.0."""
    x = steps(x)
    value = _if_finite(steps, x, _slope(steps, *_quadrant(steps, x)))
    return tirx.Select(tirx.EQ(x, steps.f(0.0)), x, value)


def small_sin(steps: Steps, x: ir.Expr) -> ir.Expr:
    """sin(x) of arguments up to _GREATEST_SMALL."""
    x = steps(x)
    return tirx.Select(tirx.EQ(x, steps.f(0.0)), x, _wave(steps, *_small_quadrant(steps, x)))


def small_cos(steps: Steps, x: ir.Expr) -> ir.Expr:
    """cos(x) of arguments up to _GREATEST_SMALL."""
    quadrant, r = _small_quadrant(steps, steps(x))
    return _wave(steps, steps(quadrant + steps.i(1)), r)


def small_tan(steps: Steps, x: ir.Expr) -> ir.Expr:
    """tan(x) of arguments up to _GREATEST_SMALL."""
    x = steps(x)
    return tirx.Select(tirx.EQ(x, steps.f(0.0)), x, _slope(steps, *_small_quadrant(steps, x)))


# Cephes' asinf: asin(x) = x + x**3 * P(x**2) up to 1/2.
_ASIN = (
    4.2163199048e-2,
    2.4181311049e-2,
    4.5470025998e-2,
    7.4953002686e-2,
    1.6666752422e-1,
)
# Cephes' atanf: atan(x) = x + x**3 * P(x**2) up to tan(pi / 8).
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
# A half turn in two parts.
_HALF_TURN, _HALF_TURN_REST = 3.14159274101257324219, -8.74227765734758577e-8


def _asin_of_small(steps: Steps, x: ir.Expr, square: ir.Expr) -> ir.Expr:
    return steps(steps.fma(steps.polynomial(square, _ASIN) * square, x, x))


def _asin_of_part(steps: Steps, x: ir.Expr, small: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Whether abs(x) is more than 1/2; then asin(sqrt((1 - abs(x)) / 2)), else asin(small).

    Args:
        steps: what this is written in.
        x: any number.
        small: x, or its size.
    """
    size = steps(tirx.abs(x))
    is_large = steps(size > steps.f(0.5))
    half = steps((steps.f(1.0) - size) * steps.f(0.5))
    square = steps(tirx.Select(is_large, half, size * size))
    part = steps(tirx.Select(is_large, tirx.sqrt(half), small))
    return is_large, _asin_of_small(steps, part, square)


def asin(steps: Steps, x: ir.Expr) -> ir.Expr:
    """A polynomial up to 1/2, and pi / 2 - 2 * asin(sqrt((1 - x) / 2)) beyond, of abs(x)."""
    x = steps(x)
    is_large, value = _asin_of_part(steps, x, tirx.abs(x))
    far = steps.f(_HALF_TURN / 2) - (value + value - steps.f(_HALF_TURN_REST / 2))
    return steps(steps.with_sign_of(x, steps(tirx.Select(is_large, steps(far), value))))


def acos(steps: Steps, x: ir.Expr) -> ir.Expr:
    """pi / 2 - asin(x) up to 1/2, and 2 * asin(sqrt((1 - abs(x)) / 2)), or pi less that, beyond."""
    x = steps(x)
    is_large, value = _asin_of_part(steps, x, x)
    double = steps(value + value)
    left = steps(steps.f(_HALF_TURN) - (double - steps.f(_HALF_TURN_REST)))
    far = steps(tirx.Select(x < steps.f(0.0), left, double))
    near = steps(steps.f(_HALF_TURN / 2) - (value - steps.f(_HALF_TURN_REST / 2)))
    return steps(tirx.Select(is_large, far, near))


def _atan_of_size(steps: Steps, over: ir.Expr, under: ir.Expr) -> ir.Expr:
    """atan(over / under) of numbers that are not negative, the first no larger than the second.

    From tan(pi / 8) on it is atan((t - 1) / (t + 1)) + pi / 4.
    """
    is_far = steps(over > under * steps.f(math.sqrt(2) - 1))
    # The sum of large ones would be infinite, and half of the least would lose digits.
    scale = tirx.Select(tirx.And(is_far, under > steps.f(1.0)), steps.f(0.5), steps.f(1.0))
    over, under = steps(over * scale), steps(under * scale)
    above = steps(tirx.Select(is_far, over - under, over))
    t = steps(above / tirx.Select(is_far, over + under, under))
    square = steps(t * t)
    value = steps(steps.fma(steps.polynomial(square, _ATAN) * square, t, t))
    quarter = tirx.Select(is_far, steps.f(_HALF_TURN / 4), steps.f(0.0))
    rest = tirx.Select(is_far, steps.f(_HALF_TURN_REST / 4), steps.f(0.0))
    return steps(steps(value + rest) + quarter)


def _less_than(steps: Steps, turn: float, value: ir.Expr) -> ir.Expr:
    """Half turns less an angle."""
    return steps(steps.f(turn * _HALF_TURN) - (value - steps.f(turn * _HALF_TURN_REST)))


def atan(steps: Steps, x: ir.Expr) -> ir.Expr:
    """atan(x), by that of 1 / x beyond 1."""
    x = steps(x)
    size, one = steps(tirx.abs(x)), steps.f(1.0)
    is_beyond = steps(size > one)
    over = steps(tirx.Select(is_beyond, one, size))
    value = _atan_of_size(steps, over, steps(tirx.Select(is_beyond, size, one)))
    value = steps(tirx.Select(is_beyond, _less_than(steps, 0.5, value), value))
    return steps(steps.with_sign_of(x, steps(tirx.Select(tirx.isnan(x), x, value))))


def atan2(steps: Steps, y: ir.Expr, x: ir.Expr) -> ir.Expr:
    """The angle of a point, with C's values where both are 0 or infinite."""
    y, x = steps(y), steps(x)
    up, right = steps(tirx.abs(y)), steps(tirx.abs(x))
    large, small = steps(tirx.Max(up, right)), steps(tirx.Min(up, right))
    # The quotient of equal infinities is 1 here, and that of zeros 0.
    is_endless = steps(tirx.EQ(small, steps.f(math.inf)))
    over = steps(tirx.Select(is_endless, steps.f(1.0), small))
    is_nothing = steps(tirx.EQ(large, steps.f(0.0)))
    under = tirx.Select(tirx.Or(is_endless, is_nothing), steps.f(1.0), large)
    value = _atan_of_size(steps, over, steps(under))
    value = steps(tirx.Select(up > right, _less_than(steps, 0.5, value), value))
    is_left = steps(steps.bits(x) < steps.i(0))
    value = steps(tirx.Select(is_left, _less_than(steps, 1.0, value), value))
    is_undefined = tirx.Or(tirx.isnan(x), tirx.isnan(y))
    value = steps(tirx.Select(is_undefined, steps.f(math.nan), value))
    return steps(steps.with_sign_of(y, value))


def hypot(steps: Steps, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """sqrt(x**2 + y**2) in float64, whose range the squares are in."""
    x, y = steps(x), steps(y)
    wide_x, wide_y = steps(steps.wide(x)), steps(steps.wide(y))
    value = steps(steps.cast("float32", tirx.sqrt(wide_x * wide_x + wide_y * wide_y)))
    # Infinite also where the other is NaN.
    ends = [tirx.EQ(tirx.abs(each), steps.f(math.inf)) for each in (x, y)]
    return steps(tirx.Select(tirx.Or(*ends), steps.f(math.inf), value))
