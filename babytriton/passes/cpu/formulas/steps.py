"""What formulas are written in, and numbers that several of them need."""

from __future__ import annotations

from tvm import ir, tirx

MANTISSA = 23
"""Bits of a float32."""

ONE = 0x3F800000
"""The bits of a float32."""

ROUND, ROUND_WIDE = 1.5 * 2.0**23, 1.5 * 2.0**52
"""Adding and subtracting it rounds a float32, or a float64, to an integer, and leaves that in the
low bits."""

ROUND_BITS = 0x4B400000
"""The bits of the float32."""

LEAST_NORMAL = 1.1754943508222875e-38
"""Of the float32 that are no denormals."""

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""log(2) in two parts, of which the first has so few bits that its products are exact."""

LOG2_E = 1.44269504088896341


class Steps:
    """The values of formulas in the order they are computed, each of them once.

    Each has memory of its own, which LLVM turns into a register. (With names for expressions, TVM's
    simplifier puts each of them in the place of its name, and takes minutes for the last.)

    Args:
        lanes: the rest of the dtypes' names, such as "x8"; empty for single numbers.
        statements: to which those are added that compute them.
        has_scaling: whether the processor has an instruction for a * 2**n.
    """

    def __init__(self, lanes: str, statements: list[tirx.Stmt], has_scaling: bool = False) -> None:
        self._lanes = lanes
        self._statements = statements
        self.has_scaling = has_scaling

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

    def scaled(self, a: ir.Expr, n: ir.Expr) -> ir.Expr:
        """a * 2**n, rounded once; a call of the C library where no instruction does it."""
        return tirx.call_llvm_pure_intrin(a.ty, "llvm.ldexp", a, n)

    def with_sign_of(self, x: ir.Expr, size: ir.Expr) -> ir.Expr:
        """A number that is not negative, with the sign of x."""
        sign = tirx.bitwise_and(self.bits(x), self.i(-(2**31)))
        return self.from_bits(tirx.bitwise_or(self.bits(size), sign))

    def within(self, x: ir.Expr, least: float, greatest: float) -> ir.Expr:
        """x, or the nearest number in the range; NaN stays (it is the second operand)."""
        return tirx.Min(self.f(greatest), tirx.Max(self.f(least), x))

    def rounded(self, x: ir.Expr) -> ir.Expr:
        """The nearest integer to a float64 of less than 2**51."""
        return (x + self.d(ROUND_WIDE)) - self.d(ROUND_WIDE)
