"""Powers, element by element."""

from __future__ import annotations

import operator
from typing import Any

import torch
from tvm import tirx

from babytriton.ops import numerics
from babytriton.ops.gradients import elementwise as gradients
from babytriton.ops.pointwise import constant, elementwise, spelled
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Scalar, Value
from babytriton.types import find_dtype


def _pow(site: Site, input: Any, exponent: Any) -> Any:
    if not site.dtype.is_floating_point:
        return _integer_pow(site, input, exponent)
    if isinstance(exponent, Scalar) or not isinstance(exponent, Value):
        return _pow_by_number(site, input, exponent)
    return elementwise(site, "pow", tirx.pow, input, exponent)


def _pow_by_number(site: Site, input: Any, exponent: Any) -> Any:
    """torch takes square roots for exponents of a half, which differs for -0.0 and -inf."""
    if isinstance(exponent, Scalar):

        def choose(x: Any, e: Any) -> Any:
            half = numerics.like(x, 0.5)
            root = tirx.Select(tirx.EQ(e, half), tirx.sqrt(x), tirx.pow(x, e))
            return tirx.Select(tirx.EQ(e, -half), tirx.rsqrt(x), root)

        return elementwise(site, "pow", choose, input, exponent)
    if exponent in _POWERS:
        return elementwise(site, "pow", _POWERS[exponent], input)
    return elementwise(site, "pow", numerics.power, input, exponent)


_POWERS = {
    0.0: lambda x: numerics.like(x, 1),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: tirx.sqrt,
    -0.5: tirx.rsqrt,
    -1.0: lambda x: numerics.like(x, 1) / x,
    -2.0: lambda x: numerics.like(x, 1) / (x * x),
}
"""What raising to a constant computes instead, as in torch."""


def _integer_pow(site: Site, input: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Value):
        if exponent < 0:
            raise Unsupported("a negative power of integers must raise")
        if exponent > 64:
            raise Unsupported("an integer power above 64")
        return elementwise(site, "pow", lambda x: _integer_power(x, int(exponent)), input)
    if isinstance(input, Value):
        raise Unsupported("integers raised to a tensor of integers")
    return elementwise(site, "pow", lambda e: _power_of_constant(int(input), e), exponent)


def _integer_power(x: Any, exponent: int) -> Any:
    if exponent == 0:
        return numerics.like(x, 1)
    half = _integer_power(x, exponent // 2)
    return half * half * x if exponent % 2 else half * half


def _power_of_constant(base: int, exponent: Any) -> Any:
    """``base ** exponent``: the product of ``base ** (2 ** k)`` over the exponent's bits k."""
    dtype = find_dtype(str(exponent.ty.dtype))
    assert dtype is not None
    bits = 8 if dtype.torch == torch.uint8 else dtype.bits - 1
    zero, one = numerics.like(exponent, 0), numerics.like(exponent, 1)
    result, factor = one, base % 2**dtype.bits
    for k in range(bits):
        rest = tirx.shift_right(exponent, numerics.like(exponent, k))
        if factor == 0:
            result = tirx.Select(tirx.NE(rest, zero), zero, result)
        if factor in (0, 1):
            break
        is_set = tirx.NE(tirx.bitwise_and(rest, one), zero)
        result = result * tirx.Select(is_set, constant(_signed(factor), dtype.torch), one)
        factor = factor * factor % 2**dtype.bits
    if base in (1, -1) or dtype.torch == torch.uint8:
        return result
    return tirx.Select(exponent < zero, zero, result)


def _signed(bits: int) -> int:
    """The signed integer of 64 bits that an unsigned one is, for torch to narrow."""
    return bits - 2**64 if bits >= 2**63 else bits


def _float_power(input: Any, exponent: Any) -> Any:
    return torch.pow(_in_float64(input), _in_float64(exponent))


def _in_float64(operand: Any) -> Any:
    return operand.to(torch.float64) if isinstance(operand, Value) else float(operand)


ROWS: tuple[Op, ...] = (
    Op("pow", (*spelled("pow"), operator.pow), _pow, scalars=True, gradient=gradients.pow),
    Op("float_power", spelled("float_power"), decompose=_float_power),
)
