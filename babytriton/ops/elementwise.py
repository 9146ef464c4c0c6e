"""Arithmetic, element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, tirx

from babytriton.ops import numerics, wrapping
from babytriton.ops.gradients import elementwise as gradients
from babytriton.ops.pointwise import (
    binary,
    elementwise,
    relaxed,
    spelled,
    unary,
)
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Scalar, Value
from babytriton.types import dtype_of

DIVISION_BY_ZERO = "integer division by a tensor: a zero must raise"


def _add(site: Site, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if site.dtype == torch.bool:
        # alpha is True or False here.
        return relaxed(site, relax.op.logical_or, input, other) if alpha else site.expr(input)
    if _is_one(alpha):
        return _arithmetic(site, "add", relax.op.add, operator.add, input, other)
    scaled = _hidden_mul if _is_zero(alpha) else operator.mul
    return elementwise(site, "add", lambda x, y, a: x + scaled(a, y), input, other, alpha)


def _sub(site: Site, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if _is_one(alpha):
        return _arithmetic(site, "sub", relax.op.subtract, operator.sub, input, other)
    scaled = _hidden_mul if _is_zero(alpha) else operator.mul
    return elementwise(site, "sub", lambda x, y, a: x - scaled(a, y), input, other, alpha)


def _rsub(site: Site, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return _sub(site, other, input, alpha=alpha)


def _mul(site: Site, input: Any, other: Any) -> Any:
    if site.dtype == torch.bool:
        return relaxed(site, relax.op.logical_and, input, other)
    if _is_zero(input) or _is_zero(other):
        # TVM takes 0 * x for 0, whatever x is.
        return elementwise(site, "mul", _hidden_mul, input, other)
    return _arithmetic(site, "mul", relax.op.multiply, operator.mul, input, other)


def _arithmetic(
    site: Site,
    name: str,
    whole: Callable[..., relax.Expr],
    element: Callable[[Any, Any], Any],
    input: Any,
    other: Any,
) -> Any:
    """A Relax operator; for integers one that wraps, as torch's arithmetic does."""
    if site.dtype.is_floating_point or site.dtype == torch.bool:
        return relaxed(site, whole, input, other)
    if all(isinstance(x, (Scalar, int)) for x in (input, other)):
        return relaxed(site, whole, input, other)  # Python's own do not wrap
    wrap = wrapping.on_cpu if site.builder.device.type == "cpu" else wrapping.in_cuda
    dtype = dtype_of(site.dtype)
    return elementwise(site, name, lambda x, y: wrap(element, x, y, dtype), input, other)


def _hidden_mul(x: Any, y: Any) -> Any:
    return numerics.hidden(x) * numerics.hidden(y)


def _div(site: Site, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None and (_is_zero(input) or _is_zero(other)):
        # TVM takes 0 / x for 0, whatever x is, and refuses x / 0.
        return elementwise(site, "div", _hidden_div, input, other)
    if rounding_mode is None:
        return relaxed(site, relax.op.divide, input, other)
    if rounding_mode == "floor":
        return _floor_divide(site, input, other)
    if site.dtype.is_floating_point:
        divide = _not_by_constant(lambda a, b: tirx.trunc(a / b), other)
        return elementwise(site, "div_trunc", divide, input, other, rounded=_is_single(input))
    if _negates(other):
        return relax.op.negative(site.expr(input, site.dtype))
    return elementwise(site, "div_trunc", tirx.truncdiv, input, _divisor(site, other))


def _floor_divide(site: Site, input: Any, other: Any) -> Any:
    if not site.dtype.is_floating_point:
        if _negates(other):
            return relax.op.negative(site.expr(input, site.dtype))
        other = _divisor(site, other)
    divide, is_zero = _not_by_constant(numerics.floor_divide, other), _is_zero(input)

    def body(x: Any, y: Any) -> Any:
        return divide(numerics.hidden(x) if is_zero else x, y)

    return elementwise(site, "floor_divide", body, input, other, rounded=_is_single(input))


def _remainder(site: Site, input: Any, other: Any) -> Any:
    if not site.dtype.is_floating_point:
        # The smallest integer % -1 traps, while everything % 1 is the same 0.
        other = 1 if _negates(other) else _divisor(site, other)
    divide = _not_by_constant(numerics.remainder, other)
    return elementwise(site, "remainder", divide, input, other, rounded=True)


def _fmod(site: Site, input: Any, other: Any) -> Any:
    if not site.dtype.is_floating_point:
        other = 1 if _negates(other) else _divisor(site, other)
    divide = _not_by_constant(tirx.truncmod, other)
    return elementwise(site, "fmod", divide, input, other, rounded=True)


def _is_single(operand: Any) -> bool:
    """Whether it is one number, which torch rounds to a half precision where it is divided."""
    return not isinstance(operand, Value) or operand.meta.ndim == 0


def _hidden_div(x: Any, y: Any) -> Any:
    return numerics.hidden(x) / numerics.hidden(y)


def _not_by_constant(fn: Callable[[Any, Any], Any], other: Any) -> Callable[[Any, Any], Any]:
    """A division by what TVM does not see to be 0, which it refuses for floats as well."""
    return (lambda x, y: fn(x, numerics.hidden(y))) if _is_zero(other) else fn


def _divisor(site: Site, other: Any) -> Any:
    """The divisor of integers: on the CPU known not to be zero; on a GPU nothing is raised."""
    is_open = isinstance(other, Value)
    if (is_open and site.builder.device.type == "cpu") or (not is_open and other == 0):
        raise Unsupported(DIVISION_BY_ZERO)
    return other


def _negates(other: Any) -> bool:
    """Whether dividing integers by ``other`` negates: the smallest one traps on division."""
    return not isinstance(other, Value) and other == -1


def _identity(site: Site, input: Any) -> Any:
    return site.expr(input)


def _neg(site: Site, input: Any) -> Any:
    return (
        elementwise(site, "neg", lambda x: numerics.like(x, 0) - x, input)
        if (site.dtype == torch.uint8)
        else relax.op.negative(site.expr(input, site.dtype))
    )


def _abs(site: Site, input: Any) -> Any:
    return site.expr(input) if site.dtype == torch.uint8 else relaxed(site, relax.op.abs, input)


def _sign(site: Site, input: Any) -> Any:
    """1, 0 or -1; torch gives 0 for NaN."""
    if site.dtype in (torch.bool, torch.uint8):
        return site.cast(site.cast(input.expr, torch.bool), site.dtype)

    def body(x: Any) -> Any:
        one, zero = numerics.like(x, 1), numerics.like(x, 0)
        return tirx.Select(x > zero, one, tirx.Select(x < zero, -one, zero))

    return elementwise(site, "sign", body, input)


def _lerp(site: Site, input: Any, end: Any, weight: Any) -> Any:
    """From the nearer end, so that both ends are exact."""
    times = _hidden_mul if _is_zero(weight) or _is_one(weight) else operator.mul

    def body(a: Any, b: Any, w: Any) -> Any:
        near = a + times(w, b - a)
        far = b - times(b - a, numerics.like(w, 1) - w)
        return tirx.Select(tirx.abs(w) < numerics.like(w, 0.5), near, far)

    return elementwise(site, "lerp", body, input, end, weight)


def _addcmul(site: Site, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    scaled = _hidden_mul if _is_zero(value) else operator.mul

    def body(x: Any, a: Any, b: Any, v: Any) -> Any:
        return x + scaled(v, a) * b

    return elementwise(site, "addcmul", body, input, tensor1, tensor2, value)


def _addcdiv(site: Site, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    scaled = _hidden_mul if _is_zero(value) else operator.mul

    def body(x: Any, a: Any, b: Any, v: Any) -> Any:
        return x + scaled(v, a) / b

    return elementwise(site, "addcdiv", body, input, tensor1, tensor2, value)


def _clamp(site: Site, input: Any, min: Any = None, max: Any = None) -> Any:
    """The larger of ``input`` and ``min``, then the smaller of that and ``max``."""
    if any(bound != bound for bound in (min, max) if isinstance(bound, float)):
        return elementwise(site, "clamp", lambda x: numerics.like(x, math.nan), input)
    bounds = [bound for bound in (min, max) if bound is not None]

    def body(x: Any, *bounds: Any) -> Any:
        left = iter(bounds)
        x = x if min is None else numerics.maximum(x, next(left))
        return x if max is None else numerics.minimum(x, next(left))

    return elementwise(site, "clamp", body, input, *bounds)


def _clamp_min(site: Site, input: Any, min: Any) -> Any:
    return _clamp(site, input, min)


def _clamp_max(site: Site, input: Any, max: Any) -> Any:
    return _clamp(site, input, max=max)


def _maximum(site: Site, input: Any, other: Any) -> Any:
    return elementwise(site, "maximum", numerics.maximum, input, other)


def _minimum(site: Site, input: Any, other: Any) -> Any:
    return elementwise(site, "minimum", numerics.minimum, input, other)


def _fmax(site: Site, input: Any, other: Any) -> Any:
    """The larger; a number rather than NaN."""
    if not site.dtype.is_floating_point:
        return _maximum(site, input, other)

    def body(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.Or(a >= b, numerics.isnan(b)), a, b)

    return elementwise(site, "fmax", body, input, other)


def _fmin(site: Site, input: Any, other: Any) -> Any:
    """The smaller; a number rather than NaN."""
    if not site.dtype.is_floating_point:
        return _minimum(site, input, other)

    def body(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.Or(a <= b, numerics.isnan(b)), a, b)

    return elementwise(site, "fmin", body, input, other)


def _where(site: Site, condition: Any, input: Any, other: Any) -> Any:
    dtypes = (torch.bool, site.dtype, site.dtype)
    return elementwise(
        site, "where", tirx.Select, condition, input, other, dtype=dtypes, rounded=True
    )


def _where_method(site: Site, input: Any, condition: Any, other: Any) -> Any:
    return _where(site, condition, input, other)


def _masked_fill(site: Site, input: Any, mask: Any, value: Any) -> Any:
    return _where(site, mask, value, input)


def _nan_to_num(
    site: Site, input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Any:
    if not site.dtype.is_floating_point:
        return site.expr(input)
    limits = torch.finfo(site.dtype)
    numbers = (
        0.0 if nan is None else nan,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    )

    def body(x: Any, nan: Any, high: Any, low: Any) -> Any:
        infinity = numerics.like(x, math.inf)
        x = tirx.Select(tirx.EQ(x, infinity), high, tirx.Select(tirx.EQ(x, -infinity), low, x))
        return tirx.Select(numerics.isnan(x), nan, x)

    return elementwise(site, "nan_to_num", body, input, *numbers)


def _heaviside(site: Site, input: Any, values: Any) -> Any:
    """1 for what is positive, 0 for the negative and NaN, and ``values`` where it is 0."""

    def body(x: Any, at_zero: Any) -> Any:
        one, zero = numerics.like(x, 1), numerics.like(x, 0)
        return tirx.Select(tirx.EQ(x, zero), at_zero, tirx.Select(x > zero, one, zero))

    # Kernels cannot order bools.
    dtype = torch.uint8 if site.dtype == torch.bool else site.dtype
    return elementwise(site, "heaviside", body, input, values, dtype=dtype)


def _ldexp(site: Site, input: Any, other: Any) -> Any:
    return site.expr(input * torch.pow(2.0, other), site.dtype)


def _is_zero(operand: Any) -> bool:
    return not isinstance(operand, Value) and operand == 0


def _is_one(alpha: Any) -> bool:
    return not isinstance(alpha, Value) and alpha == 1


ROWS: tuple[Op, ...] = (
    Op("add", (*spelled("add"), operator.add), _add, scalars=True, gradient=gradients.add),
    Op(
        "sub",
        (*spelled("sub", "subtract"), operator.sub),
        _sub,
        scalars=True,
        gradient=gradients.sub,
    ),
    Op("rsub", spelled("rsub"), _rsub, scalars=True, gradient=gradients.rsub),
    Op(
        "mul",
        (*spelled("mul", "multiply"), operator.mul),
        _mul,
        scalars=True,
        gradient=gradients.mul,
    ),
    Op(
        "div",
        (*spelled("div", "divide", "true_divide"), operator.truediv),
        _div,
        scalars=True,
        gradient=gradients.div,
    ),
    Op(
        "floor_divide",
        (*spelled("floor_divide"), operator.floordiv),
        _floor_divide,
        scalars=True,
        gradient=gradients.zero,
    ),
    Op(
        "remainder",
        (*spelled("remainder"), operator.mod),
        _remainder,
        scalars=True,
        gradient=gradients.remainder,
    ),
    Op("fmod", spelled("fmod"), _fmod, scalars=True, gradient=gradients.fmod),
    Op(
        "neg",
        (*spelled("neg", "negative"), operator.neg),
        _neg,
        scalars=True,
        gradient=gradients.neg,
    ),
    Op(
        "positive",
        (*spelled("positive"), operator.pos),
        _identity,
        scalars=True,
        gradient=gradients.same,
    ),
    Op("abs", (*spelled("abs", "absolute"), operator.abs), _abs, gradient=gradients.abs),
    Op("sign", spelled("sign", "sgn"), _sign, gradient=gradients.zero),
    unary("reciprocal", lambda x: numerics.like(x, 1) / x, gradients.reciprocal),
    unary("square", lambda x: x * x, gradients.square),
    binary("copysign", tirx.copysign, gradients.copysign),
    Op("lerp", spelled("lerp"), _lerp, scalars=True, gradient=gradients.lerp),
    Op("addcmul", spelled("addcmul"), _addcmul, scalars=True, gradient=gradients.addcmul),
    Op("addcdiv", spelled("addcdiv"), _addcdiv, scalars=True, gradient=gradients.addcdiv),
    Op("clamp", spelled("clamp", "clip"), _clamp, scalars=True, gradient=gradients.clamp),
    Op("clamp_min", spelled("clamp_min"), _clamp_min, scalars=True, gradient=gradients.clamp_min),
    Op("clamp_max", spelled("clamp_max"), _clamp_max, scalars=True, gradient=gradients.clamp_max),
    Op("maximum", spelled("maximum"), _maximum, gradient=gradients.maximum),
    Op("minimum", spelled("minimum"), _minimum, gradient=gradients.minimum),
    Op("fmax", spelled("fmax"), _fmax, gradient=gradients.fmax),
    Op("fmin", spelled("fmin"), _fmin, gradient=gradients.fmin),
    Op("where", (torch.where,), _where, scalars=True, gradient=gradients.where),
    Op(
        "Tensor.where",
        (torch.Tensor.where,),
        _where_method,
        scalars=True,
        gradient=gradients.where_method,
    ),
    Op(
        "masked_fill",
        spelled("masked_fill"),
        _masked_fill,
        scalars=True,
        gradient=gradients.masked_fill,
    ),
    Op("nan_to_num", spelled("nan_to_num"), _nan_to_num, gradient=gradients.nan_to_num),
    Op("heaviside", spelled("heaviside"), _heaviside, gradient=gradients.zero),
    Op("ldexp", spelled("ldexp"), _ldexp, gradient=gradients.ldexp),
)
