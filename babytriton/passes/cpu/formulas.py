"""float32 functions as arithmetic: loops over them vectorize, where a call of libm would not.

Each is a formula for one number without branches, calls or tables; LLVM's loop vectorizer makes
vector code of it for whatever instructions the processor has. Nothing here counts on fused
multiply-adds. Coefficients marked Cephes are those of S. Moshier's Cephes Math Library 2.2, single
precision. tests/unit/test_vector_math.py says how exact each must be, and sweeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import ir, tirx

_INFINITY = math.inf
_MANTISSA = 23  # bits


class Steps:
    """The values of formulas in the order they are computed, each of them once.

    Each has memory of its own, which LLVM turns into a register. (With names for expressions, TVM's
    simplifier puts each of them in the place of its name, and takes minutes for the last.)

    Args:
        lanes: the rest of the dtypes' names, such as "x8"; empty for single numbers.
        statements: to which those are added that compute them.
    """

    def __init__(self, lanes: str, statements: list[tirx.Stmt]) -> None:
        self._lanes = lanes
        self._statements = statements

    def __call__(self, value: ir.Expr) -> ir.Expr:
        """The value, computed now."""
        dtype = str(value.ty.dtype)
        if dtype.startswith("bool"):
            return value  # would be a byte in memory
        buffer = tirx.decl_buffer((1,), dtype, "step")
        first = [tirx.const(0, "int32")]
        self._statements += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, first)]
        return tirx.BufferLoad(buffer, first)

    def const(self, number: float, dtype: str) -> ir.Expr:
        return tirx.const(number, dtype + self._lanes)

    def f(self, number: float) -> ir.Expr:
        return self.const(number, "float32")

    def i(self, number: int) -> ir.Expr:
        return self.const(number, "int32")

    def d(self, number: float) -> ir.Expr:
        return self.const(number, "float64")

    def cast(self, dtype: str, x: ir.Expr) -> ir.Expr:
        return tirx.Cast(dtype + self._lanes, x)

    def wide(self, x: ir.Expr) -> ir.Expr:
        return self.cast("float64", x)

    def reinterpret(self, dtype: str, x: ir.Expr) -> ir.Expr:
        return tirx.reinterpret(dtype + self._lanes, x)

    def bits(self, x: ir.Expr) -> ir.Expr:
        return self.reinterpret("int32", x)

    def from_bits(self, x: ir.Expr) -> ir.Expr:
        return self.reinterpret("float32", x)

    def polynomial(
        self, x: ir.Expr, coefficients: tuple[float, ...], dtype: str = "float32"
    ) -> ir.Expr:
        """By Horner's rule, the highest power's coefficient first."""
        total = self.const(coefficients[0], dtype)
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.const(coefficient, dtype))
        return total

    def fma(self, a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
        """a * b + c, rounded once where the processor can."""
        return tirx.call_intrin(c.ty, "tirx.fma", a, b, c)

    def with_sign_of(self, x: ir.Expr, size: ir.Expr) -> ir.Expr:
        """A number that is not negative, with the sign of x."""
        sign = tirx.bitwise_and(self.bits(x), self.i(-(2**31)))
        return self.from_bits(tirx.bitwise_or(self.bits(size), sign))

    def within(self, x: ir.Expr, least: float, greatest: float) -> ir.Expr:
        """x, or the nearest number in the range; NaN stays (it is the second operand)."""
        return tirx.Min(self.f(greatest), tirx.Max(self.f(least), x))

    def rounded(self, x: ir.Expr) -> ir.Expr:
        """The nearest integer to a float64 of less than 2**51."""
        return (x + self.d(_ROUND_WIDE)) - self.d(_ROUND_WIDE)


# ---------------------------------------------------------------- exponentials

_LOG2_E = 1.44269504088896341
# log(2) in two parts, of which the first has so few bits that its products are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# Cephes' expf: exp(r) = 1 + r + r * r * P(r) for |r| <= log(2) / 2.
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
# Adding and subtracting 1.5 * 2**23 rounds to an integer, and leaves it in the low bits.
_ROUND = 12582912.0
# Of these exp is 0 and infinite; 2**n, in two factors, is still representable.
_LEAST, _GREATEST = -104.0, 89.0
_ONE = 0x3F800000  # its bits


def _exp(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x) = 2**n * exp(r) where x = n * log(2) + r."""
    inside = steps(steps.within(x, _LEAST, _GREATEST))
    shifted = steps(steps.fma(inside, steps.f(_LOG2_E), steps.f(_ROUND)))
    n = steps(shifted - steps.f(_ROUND))
    r = steps(steps.fma(n, steps.f(-_LN2_HIGH), inside))
    r = steps(steps.fma(n, steps.f(-_LN2_LOW), r))
    near_one = steps(steps.fma(steps.polynomial(r, _EXP), r * r, r) + steps.f(1.0))
    # 2**n in two factors: it may be too small or too large for one. The bits of `shifted` are n,
    # and others above that the shifts push out.
    bits = steps(steps.bits(shifted))
    half = steps(tirx.shift_right(bits, steps.i(1)))
    first = tirx.shift_left(half, steps.i(_MANTISSA)) + steps.i(_ONE)
    second = tirx.shift_left(bits - half, steps.i(_MANTISSA)) + steps.i(_ONE)
    return steps(near_one * steps.from_bits(first) * steps.from_bits(second))


def exp(steps: Steps, x: ir.Expr) -> ir.Expr:
    """exp(x)."""
    return _exp(steps, steps(x))


def sigmoid(steps: Steps, x: ir.Expr) -> ir.Expr:
    """1 / (1 + exp(-x)), by exp(-abs(x)), which does not overflow where the result is tiny."""
    x = steps(x)
    e = _exp(steps, steps(steps.f(0.0) - tirx.abs(x)))
    ratio = steps(steps.f(1.0) / (steps.f(1.0) + e))
    return steps(tirx.Select(x < steps.f(0.0), e * ratio, ratio))


# Cephes' tanhf: tanh(x) = x + x**3 * P(x**2) for |x| < 0.625.
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def tanh(steps: Steps, x: ir.Expr) -> ir.Expr:
    """A polynomial near zero, and 1 - 2 / (exp(2 * abs(x)) + 1) elsewhere."""
    x = steps(x)
    size = steps(tirx.abs(x))
    square = steps(size * size)
    near = steps(steps.fma(steps.polynomial(square, _TANH) * square, size, size))
    e = _exp(steps, steps(size + size))
    far = steps(steps.f(1.0) - steps.f(2.0) / (e + steps.f(1.0)))
    found = steps(tirx.Select(size < steps.f(0.625), near, far))
    return steps(steps.with_sign_of(x, found))


# ---------------------------------------------------------------- logarithms

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
_LEAST_NORMAL = 1.1754943508222875e-38


def _log(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x) = e * log(2) + log(m) where x = 2**e * m."""
    tiny = steps(x < steps.f(_LEAST_NORMAL))
    normal = steps(tirx.Select(tiny, x * steps.f(2.0**_MANTISSA), x))
    bits = steps(steps.bits(normal))
    e = steps(tirx.shift_right(bits - steps.i(_ROOT_OF_HALF), steps.i(_MANTISSA)))
    m = steps(steps.from_bits(bits - tirx.shift_left(e, steps.i(_MANTISSA))))
    exponent = steps(steps.cast("float32", e) - tirx.Select(tiny, steps.f(_MANTISSA), steps.f(0.0)))
    f = steps(m - steps.f(1.0))
    square = steps(f * f)
    rest = steps(steps.polynomial(f, _LOG) * f * square)
    rest = steps(rest + exponent * steps.f(_LN2_LOW) - square * steps.f(0.5))
    value = steps(f + rest + exponent * steps.f(_LN2_HIGH))
    value = steps(tirx.Select(tirx.EQ(x, steps.f(_INFINITY)), x, value))
    value = steps(tirx.Select(x > steps.f(0.0), value, steps.f(math.nan)))
    return steps(tirx.Select(tirx.EQ(x, steps.f(0.0)), steps.f(-_INFINITY), value))


def log(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(x)."""
    return steps(_log(steps, steps(x)))


def log1p(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log(u) with u = 1 + x, and what rounding u has lost: (x - (u - 1)) / u."""
    x = steps(x)
    u = steps(x + steps.f(1.0))
    lost = steps((x - (u - steps.f(1.0))) / u)
    value = steps(_log(steps, u))
    # At both ends the correction is NaN, and there is nothing to correct.
    ends = tirx.Or(tirx.EQ(u, steps.f(0.0)), tirx.EQ(u, steps.f(_INFINITY)))
    return steps(tirx.Select(ends, value, tirx.Select(tirx.EQ(u, steps.f(1.0)), x, value + lost)))


# ---------------------------------------------------------------- the error function

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
_ERF_IS_ONE = 3.832506856900711


def erf(steps: Steps, x: ir.Expr) -> ir.Expr:
    """x * P(x**2) / Q(x**2) as far as it is less than 1."""
    x = steps(x)
    inside = steps(steps.within(x, -_ERF_IS_ONE, _ERF_IS_ONE))
    square = steps(inside * inside)
    over = steps(inside * steps.polynomial(square, _ERF_OVER))
    ratio = steps(over / steps.polynomial(square, _ERF_UNDER))
    return steps(steps.within(ratio, -1.0, 1.0))


def rsqrt(steps: Steps, x: ir.Expr) -> ir.Expr:
    """Both of its operations round correctly, and processors have them for vectors."""
    return steps(steps.f(1.0) / tirx.sqrt(x))


# ---------------------------------------------------------------- powers

# 2 / log(2) * atanh(s) = log2((1 + s) / (1 - s)), by the powers of s**2, for s up to 0.172.
_ATANH = tuple(2 / math.log(2) / n for n in (13, 11, 9, 7, 5, 3, 1))
# 2**r for r up to 1/2, by powers of r.
_EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(8, -1, -1))
# As _ROUND, for float64.
_ROUND_WIDE = 1.5 * 2.0**52
_BEYOND = 200.0  # 2 to this power is infinite in float32, and to minus this power 0


def _log2_wide(steps: Steps, x: ir.Expr) -> ir.Expr:
    """log2(x) of a positive number in float64, to 1e-11 of it."""
    tiny = steps(x < steps.f(_LEAST_NORMAL))
    bits = steps(steps.bits(tirx.Select(tiny, x * steps.f(2.0**_MANTISSA), x)))
    e = steps(tirx.shift_right(bits - steps.i(_ROOT_OF_HALF), steps.i(_MANTISSA)))
    m = steps(steps.wide(steps.from_bits(bits - tirx.shift_left(e, steps.i(_MANTISSA)))))
    exponent = steps(steps.wide(e - tirx.Select(tiny, steps.i(_MANTISSA), steps.i(0))))
    s = steps((m - steps.d(1.0)) / (m + steps.d(1.0)))
    return steps(steps.polynomial(steps(s * s), _ATANH, "float64") * s + exponent)


def _exp2_wide(steps: Steps, t: ir.Expr) -> ir.Expr:
    """2**t in float64, to 1e-9 of it, of a number between -_BEYOND and _BEYOND."""
    shifted = steps(t + steps.d(_ROUND_WIDE))
    near_one = steps.polynomial(steps(t - (shifted - steps.d(_ROUND_WIDE))), _EXP2, "float64")
    bits = steps(steps.reinterpret("int64", shifted))
    exponent = tirx.shift_left(bits + steps.const(1023, "int64"), steps.const(52, "int64"))
    return steps(near_one * steps.reinterpret("float64", exponent))


def pow(steps: Steps, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """2**(y * log2(abs(x))) in float64, and the sign and the special values of C's pow."""
    x, y = steps(x), steps(y)
    size = steps(tirx.abs(x))
    log2 = steps(_log2_wide(steps, size))
    log2 = steps(tirx.Select(tirx.EQ(size, steps.f(0.0)), steps.d(-_INFINITY), log2))
    log2 = steps(tirx.Select(tirx.EQ(size, steps.f(_INFINITY)), steps.d(_INFINITY), log2))
    t = steps(steps.wide(y) * log2)
    t = steps(tirx.Min(tirx.Max(t, steps.d(-_BEYOND)), steps.d(_BEYOND)))
    value = steps(steps.cast("float32", _exp2_wide(steps, t)))
    is_whole = steps(tirx.EQ(tirx.floor(y), y))
    half = steps(y * steps.f(0.5))
    is_odd = steps(tirx.And(is_whole, tirx.NE(tirx.floor(half), half)))
    negative = steps(steps.bits(x) < steps.i(0))
    value = steps(tirx.Select(tirx.And(negative, is_odd), value * steps.f(-1.0), value))
    is_root = tirx.And(tirx.And(x < steps.f(0.0), x > steps.f(-_INFINITY)), tirx.Not(is_whole))
    undefined = tirx.Or(is_root, tirx.Or(tirx.isnan(x), tirx.isnan(y)))
    value = steps(tirx.Select(undefined, steps.f(math.nan), value))
    # (-1) ** inf is 1 too.
    endless = tirx.And(tirx.EQ(size, steps.f(1.0)), tirx.EQ(tirx.abs(y), steps.f(_INFINITY)))
    is_one = tirx.Or(tirx.Or(tirx.EQ(y, steps.f(0.0)), tirx.EQ(x, steps.f(1.0))), endless)
    return steps(tirx.Select(is_one, steps.f(1.0), value))


# ---------------------------------------------------------------- sine and cosine

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
    shifted = steps(steps.fma(x, steps.f(2 / math.pi), steps.f(_ROUND)))
    turns = steps(shifted - steps.f(_ROUND))
    rest = x
    for part in _QUARTERS:
        rest = steps(steps.fma(turns, steps.f(-float.fromhex(part)), rest))
    # The low bits of `shifted` are the number's.
    return steps(steps.bits(shifted)), rest


def _wave(steps: Steps, quadrant: ir.Expr, r: ir.Expr) -> ir.Expr:
    """The sine of r after a number of quarter turns."""
    square = steps(r * r)
    sine = steps(steps.polynomial(square, _SIN) * square * r + r)
    cosine = steps.polynomial(square, _COS) * square * square - square * steps.f(0.5) + steps.f(1.0)
    is_even = tirx.EQ(tirx.bitwise_and(quadrant, steps.i(1)), steps.i(0))
    value = steps(tirx.Select(is_even, sine, steps(cosine)))
    is_first_half = tirx.EQ(tirx.bitwise_and(quadrant, steps.i(2)), steps.i(0))
    return steps(tirx.Select(is_first_half, value, value * steps.f(-1.0)))


def _if_finite(steps: Steps, x: ir.Expr, value: ir.Expr) -> ir.Expr:
    return steps(tirx.Select(tirx.abs(x) < steps.f(_INFINITY), value, steps.f(math.nan)))


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


def small_sin(steps: Steps, x: ir.Expr) -> ir.Expr:
    """sin(x) of arguments up to _GREATEST_SMALL."""
    x = steps(x)
    return tirx.Select(tirx.EQ(x, steps.f(0.0)), x, _wave(steps, *_small_quadrant(steps, x)))


def small_cos(steps: Steps, x: ir.Expr) -> ir.Expr:
    """cos(x) of arguments up to _GREATEST_SMALL."""
    quadrant, r = _small_quadrant(steps, steps(x))
    return _wave(steps, steps(quadrant + steps.i(1)), r)


FORMULAS: dict[str, Callable[..., ir.Expr]] = {
    formula.__name__: formula
    for formula in (exp, log, log1p, sigmoid, tanh, erf, rsqrt, pow, sin, cos)
}
"""By the name of TVM's intrinsic."""

SMALL: dict[str, tuple[Callable[..., ir.Expr], float]] = {
    "sin": (small_sin, _GREATEST_SMALL),
    "cos": (small_cos, _GREATEST_SMALL),
}
"""Those that are shorter of small arguments, and up to which; with fused multiply-adds alone."""
