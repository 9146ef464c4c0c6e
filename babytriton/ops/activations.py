"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import tirx

from babytriton.ops import numerics
from babytriton.ops.gradients import activations as gradients
from babytriton.ops.gradients import random
from babytriton.ops.numerics import like
from babytriton.ops.pointwise import elementwise, number, spelled
from babytriton.ops.refusals import Random
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.table import Op
from babytriton.ops.value import Value


def _activation(
    name: str, fn: Callable[..., Any], gradient: Callable[..., Any], **parameters: Any
) -> Op:
    """A row of one tensor, whose element is ``fn(element, *numbers)``.

    Args:
        name: of the row.
        fn: gives an element.
        gradient: of the row.
        parameters: the names of the numbers that follow the tensor, and their defaults.
    """
    names = tuple(parameters)

    def build(site: Site, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        # Where torch takes ``inplace`` by position, it follows the numbers.
        given = dict(zip(names, args)) | kwargs
        numbers = [given.get(key, default) for key, default in parameters.items()]
        return elementwise(site, name, lambda x: fn(x, *numbers), input)

    return Op(name, spelled(name), build, gradient=gradient)


def _relu(x: Any) -> Any:
    # NaN is not less than 0 and stays.
    return tirx.Select(x <= like(x, 0), like(x, 0), x)


def _hardtanh(x: Any, min_val: float, max_val: float) -> Any:
    low, high = like(x, min_val), like(x, max_val)
    return tirx.Select(x < low, low, tirx.Select(x > high, high, x))


def _relu6(x: Any) -> Any:
    return _hardtanh(x, 0, 6)


def _leaky_relu(x: Any, negative_slope: float) -> Any:
    slope = like(x, negative_slope)
    # TVM takes 0 * x for 0, whatever x is.
    slope = slope if negative_slope else numerics.hidden(slope)
    return tirx.Select(x > like(x, 0), x, x * slope)


def _elu(x: Any, alpha: float, scale: float = 1, input_scale: float = 1) -> Any:
    negative = numerics.expm1(x * like(x, input_scale)) * like(x, alpha * scale)
    return tirx.Select(x <= like(x, 0), negative, x * like(x, scale))


def _selu(x: Any) -> Any:
    return _elu(x, *gradients.SELU)


def _celu(x: Any, alpha: float) -> Any:
    return _elu(x, alpha, 1, 1 / alpha)


def _gelu(x: Any, approximate: str) -> Any:
    half, one = like(x, 0.5), like(x, 1)
    if approximate == "none":
        return x * (half * (one + tirx.erf(x * like(x, math.sqrt(0.5)))))
    inner = like(x, math.sqrt(2 / math.pi)) * (x + like(x, 0.044715) * x * x * x)
    return half * x * (one + tirx.tanh(inner))


def _silu(x: Any) -> Any:
    return x / (like(x, 1) + tirx.exp(-x))


def _mish(x: Any) -> Any:
    # tanh(log(u)) = (u**2 - 1) / (u**2 + 1), which is 1 from 20 on; u**2 - 1 of u = 1 + exp(x).
    limit = like(x, 20)
    power = tirx.exp(tirx.Select(x > limit, limit, x))
    more = power * (power + like(x, 2))
    return x * (more / (more + like(x, 2)))


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    scaled = x * like(x, beta)
    soft = tirx.log1p(tirx.exp(scaled)) / like(x, beta)
    return tirx.Select(scaled > like(x, threshold), x, soft)


def _logsigmoid(x: Any) -> Any:
    return numerics.minimum(x, like(x, 0)) - tirx.log1p(tirx.exp(-tirx.abs(x)))


def _hardsigmoid(site: Site, input: Any, inplace: bool = False) -> Any:
    return elementwise(site, "hardsigmoid", lambda x: _by_six(site, _relu6(x + like(x, 3))), input)


def _hardswish(site: Site, input: Any, inplace: bool = False) -> Any:
    return elementwise(
        site, "hardswish", lambda x: _by_six(site, x * _relu6(x + like(x, 3))), input
    )


def _by_six(site: Site, x: Any) -> Any:
    """A sixth: the digits of halves are the same after a product, which takes less time."""
    is_half = site.dtype in (torch.float16, torch.bfloat16)
    return x * like(x, 1 / 6) if is_half else x / like(x, 6)


def _softsign(input: Any) -> Any:
    return input / (input.abs() + 1)


def _tanhshrink(input: Any) -> Any:
    return input - input.tanh()


def _hardshrink(site: Site, input: Any, lambd: float = 0.5) -> Any:
    def body(x: Any) -> Any:
        limit = _in_dtype(site, x, lambd)
        return tirx.Select(tirx.And(x >= -limit, x <= limit), like(x, 0), x)

    return elementwise(site, "hardshrink", body, input)


def _softshrink(site: Site, input: Any, lambd: float = 0.5) -> Any:
    def body(x: Any) -> Any:
        limit = _in_dtype(site, x, lambd)
        inside = tirx.Select(x < -limit, x + limit, tirx.Select(numerics.isnan(x), x, like(x, 0)))
        return tirx.Select(x > limit, x - limit, inside)

    return elementwise(site, "softshrink", body, input)


def _threshold(
    site: Site, input: Any, threshold: float, value: float, inplace: bool = False
) -> Any:
    def body(x: Any) -> Any:
        return tirx.Select(x <= _in_dtype(site, x, threshold), _in_dtype(site, x, value), x)

    return elementwise(site, "threshold", body, input)


def _in_dtype(site: Site, x: Any, value: float) -> Any:
    """A limit rounded to the tensor's own dtype, as torch compares with it."""
    return like(x, number(value, site.dtype))


def _rrelu(
    site: Site,
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    if training:
        raise Random
    return elementwise(site, "rrelu", lambda x: _leaky_relu(x, (lower + upper) / 2), input)


def _prelu(site: Site, input: Value, weight: Value) -> Any:
    """One slope, or one for each index of the second dimension."""
    channels = weight.meta.numel()
    slopes = weight if channels == 1 or input.meta.ndim < 2 else None
    if slopes is None:
        slopes = weight.reshape(channels, *(1 for _ in input.meta.shape[2:]))
    elif input.meta.ndim == 0:
        slopes = weight.reshape(())

    def body(x: Any, slope: Any) -> Any:
        return tirx.Select(x > like(x, 0), x, x * slope)

    return elementwise(site, "prelu", body, input, slopes)


def _glu(site: Site, input: Value, dim: int = -1) -> Any:
    """The first half of a dimension, weighed by the logistic function of the second."""
    dim %= input.meta.ndim
    size = int64(site.shape[dim])
    dtype = str(input.expr.ty.dtype)
    wide = "float64" if dtype == "float64" else "float32"

    def body(tensors: Any, *index: Any) -> Any:
        (x,) = tensors
        second = (*index[:dim], index[dim] + size, *index[dim + 1 :])
        gate = tirx.sigmoid(x(*second).astype(wide))
        return (x(*index).astype(wide) * gate).astype(dtype)

    return site.compute("glu", site.shape, body, input.expr)


ROWS: tuple[Op, ...] = (
    _activation("relu", _relu, gradients.relu),
    _activation("relu6", _relu6, gradients.relu6),
    _activation("leaky_relu", _leaky_relu, gradients.leaky_relu, negative_slope=0.01),
    _activation("elu", _elu, gradients.elu, alpha=1.0),
    _activation("selu", _selu, gradients.selu),
    _activation("celu", _celu, gradients.celu, alpha=1.0),
    _activation("gelu", _gelu, gradients.gelu, approximate="none"),
    _activation("silu", _silu, gradients.silu),
    _activation("mish", _mish, gradients.mish),
    _activation("softplus", _softplus, gradients.softplus, beta=1, threshold=20),
    _activation("logsigmoid", _logsigmoid, gradients.logsigmoid),
    _activation("hardtanh", _hardtanh, gradients.hardtanh, min_val=-1.0, max_val=1.0),
    Op("hardsigmoid", spelled("hardsigmoid"), _hardsigmoid, gradient=gradients.hardsigmoid),
    Op("hardswish", spelled("hardswish"), _hardswish, gradient=gradients.hardswish),
    Op("softsign", spelled("softsign"), decompose=_softsign),
    Op("tanhshrink", spelled("tanhshrink"), decompose=_tanhshrink),
    Op("hardshrink", spelled("hardshrink"), _hardshrink, gradient=gradients.shrink),
    Op("softshrink", spelled("softshrink"), _softshrink, gradient=gradients.shrink),
    Op("threshold", spelled("threshold"), _threshold, gradient=gradients.threshold),
    Op("rrelu", spelled("rrelu"), _rrelu, derive=random.rrelu),
    Op("prelu", spelled("prelu"), _prelu, gradient=gradients.prelu),
    Op("glu", spelled("glu"), _glu, gradient=gradients.glu),
)
