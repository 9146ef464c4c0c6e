"""Comparisons, logical and bitwise operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, tirx

from babytriton.ops import numerics
from babytriton.ops.numerics import like
from babytriton.ops.pointwise import common_dtype, elementwise, relaxed, spelled
from babytriton.ops.refusals import IllTyped
from babytriton.ops.site import Site
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of


def _comparison(name: str, fn: Callable[..., Any], *spellings: str) -> Op:
    """A row that compares operands in the dtype they promote to."""

    def build(site: Site, input: Any, other: Any) -> Any:
        dtype = common_dtype(input, other)
        if dtype == torch.bfloat16:
            body = _of_rounded(_OF_FLOATS.get(name, getattr(operator, name)), input, other)
            return elementwise(site, name, body, input, other, dtype=dtype, rounded=True)
        if dtype.is_floating_point and name in _OF_FLOATS:
            body = _OF_FLOATS[name]
            return elementwise(site, name, body, input, other, dtype=dtype, rounded=True)
        # TVM compares bools as floats, which LLVM refuses.
        dtype = torch.uint8 if dtype == torch.bool else dtype
        return relaxed(site, fn, input, other, dtype=dtype)

    calls = (*spelled(name, *spellings), getattr(operator, name))
    return Op(name, calls, build, scalars=True)


_OF_FLOATS = {"eq": numerics.equal, "ne": numerics.not_equal}
"""Where TVM's own comparisons are wrong for NaN."""


def _of_rounded(body: Callable[..., Any], *operands: Any) -> Callable[..., Any]:
    """A comparison of float32 as one of bfloat16, which TVM computes in float32 on the CPU.

    What has been computed in the same kernel is not rounded otherwise, and no number would equal
    the largest. Its sign is that of the bfloat16.
    """
    is_on_cpu = any(isinstance(x, Value) and x.device.type == "cpu" for x in operands)
    if not is_on_cpu or any(not isinstance(x, Value) and x == 0 for x in operands):
        return body
    return lambda a, b: body(numerics.rounded_to_bfloat16(a), numerics.rounded_to_bfloat16(b))


def _logical(name: str, fn: Callable[..., Any]) -> Op:
    """A row that takes whatever is not 0 for true."""

    def build(site: Site, input: Any, other: Any) -> Any:
        return relaxed(site, fn, input, other, dtype=torch.bool)

    return Op(name, spelled(name), build)


def _logical_not(site: Site, input: Any) -> Any:
    """A choice, because TVM turns ``not a <= b`` into ``a > b``, which is another thing for NaN."""

    def body(x: Any) -> Any:
        return tirx.Select(x, tirx.const(False, "bool"), tirx.const(True, "bool"))

    return elementwise(site, "logical_not", body, input, dtype=torch.bool)


def _bitwise(name: str, bits: Callable[..., Any], truth: Callable[..., Any], call: Callee) -> Op:
    """A row that works on the bits of integers, and on bools as a logical operator."""

    def build(site: Site, input: Any, other: Any) -> Any:
        if site.dtype.is_floating_point:
            raise IllTyped(f"{name} is not implemented for {dtype_of(site.dtype).name}")
        return relaxed(site, truth if site.dtype == torch.bool else bits, input, other)

    return Op(name, (*spelled(name), call), build)


def _bitwise_not(site: Site, input: Any) -> Any:
    if site.dtype == torch.bool:
        return _logical_not(site, input)
    return relaxed(site, relax.op.bitwise_not, input)


def _left_shift(site: Site, input: Any, other: Any) -> Any:
    """0 where the count is negative or not below the width, which is undefined in a kernel."""
    width = dtype_of(site.dtype).bits

    def body(x: Any, n: Any) -> Any:
        inside, count = _shift(n, width)
        return tirx.Select(inside, tirx.shift_left(x, count), like(x, 0))

    return elementwise(site, "left_shift", body, input, other)


def _right_shift(site: Site, input: Any, other: Any) -> Any:
    """Arithmetic; a count that is negative or not below the width shifts every bit out."""
    width = dtype_of(site.dtype).bits
    unsigned = site.dtype == torch.uint8

    def body(x: Any, n: Any) -> Any:
        inside, count = _shift(n, width)
        rest = like(x, 0) if unsigned else tirx.shift_right(x, like(x, width - 1))
        return tirx.Select(inside, tirx.shift_right(x, count), rest)

    return elementwise(site, "right_shift", body, input, other)


def _shift(n: Any, width: int) -> tuple[Any, Any]:
    inside = tirx.And(n >= like(n, 0), n < like(n, width))
    return inside, tirx.Select(inside, n, like(n, 0))


def _test(name: str, test: Callable[[Any], Any]) -> Op:
    """A row that asks something of floats which no integer fulfils."""

    def build(site: Site, input: Any) -> Any:
        dtype = input.meta.dtype
        if not dtype.is_floating_point:
            return relax.op.full(site.shape, relax.const(False, "bool"), "bool")
        return elementwise(site, name, test, input, dtype=dtype)

    return Op(name, spelled(name), build)


def _isfinite(site: Site, input: Any) -> Any:
    dtype = input.meta.dtype
    if not dtype.is_floating_point:
        return relax.op.full(site.shape, relax.const(True, "bool"), "bool")
    # NaN is not less than infinity.
    return elementwise(
        site, "isfinite", lambda x: tirx.abs(x) < like(x, math.inf), input, dtype=dtype
    )


def _signbit(site: Site, input: Any) -> Any:
    dtype = input.meta.dtype

    def body(x: Any) -> Any:
        if not dtype.is_floating_point:
            return x < like(x, 0)
        bits = "int64" if dtype == torch.float64 else "int32"
        return tirx.reinterpret(bits, x) < tirx.const(0, bits)

    if dtype in (torch.bool, torch.uint8):
        return relax.op.full(site.shape, relax.const(False, "bool"), "bool")
    return elementwise(site, "signbit", body, input, dtype=dtype)


def _isclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    close = input == other
    if equal_nan and input.is_floating_point():
        close = close | ((input != input) & (other != other))
    if rtol == 0 and atol == 0:
        return close
    if not input.is_floating_point():
        # Differences and products of integers could overflow.
        input, other = input.to(torch.get_default_dtype()), other.to(torch.get_default_dtype())
    allowed = atol + (rtol * other).abs()
    actual = (input - other).abs()
    return close | (torch.isfinite(actual) & (actual <= allowed))


ROWS: tuple[Op, ...] = (
    _comparison("eq", relax.op.equal),
    _comparison("ne", relax.op.not_equal, "not_equal"),
    _comparison("lt", relax.op.less, "less"),
    _comparison("le", relax.op.less_equal, "less_equal"),
    _comparison("gt", relax.op.greater, "greater"),
    _comparison("ge", relax.op.greater_equal, "greater_equal"),
    _logical("logical_and", relax.op.logical_and),
    _logical("logical_or", relax.op.logical_or),
    _logical("logical_xor", relax.op.logical_xor),
    Op("logical_not", spelled("logical_not"), _logical_not),
    _bitwise("bitwise_and", relax.op.bitwise_and, relax.op.logical_and, operator.and_),
    _bitwise("bitwise_or", relax.op.bitwise_or, relax.op.logical_or, operator.or_),
    _bitwise("bitwise_xor", relax.op.bitwise_xor, relax.op.logical_xor, operator.xor),
    Op("bitwise_not", (*spelled("bitwise_not"), operator.invert), _bitwise_not),
    Op("bitwise_left_shift", (*spelled("bitwise_left_shift"), operator.lshift), _left_shift),
    Op("bitwise_right_shift", (*spelled("bitwise_right_shift"), operator.rshift), _right_shift),
    _test("isnan", numerics.isnan),
    _test("isinf", lambda x: tirx.EQ(tirx.abs(x), like(x, math.inf))),
    _test("isposinf", lambda x: tirx.EQ(x, like(x, math.inf))),
    _test("isneginf", lambda x: tirx.EQ(x, like(x, -math.inf))),
    Op("isfinite", spelled("isfinite"), _isfinite),
    Op("signbit", spelled("signbit"), _signbit),
    Op("isclose", spelled("isclose"), decompose=_isclose),
)
