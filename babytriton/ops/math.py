"""Mathematical functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, tirx

from babytriton.ops import numerics
from babytriton.ops.gradients import math as gradients
from babytriton.ops.gradients.elementwise import same, zero
from babytriton.ops.numerics import like
from babytriton.ops.pointwise import binary, elementwise, relaxed, spelled, unary
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.table import Op


def _rounded(name: str, fn: Callable[..., Any], *spellings: str) -> Op:
    """A row that rounds floats to whole numbers and leaves integers as they are."""

    def build(site: Site, input: Any) -> Any:
        if not site.dtype.is_floating_point:
            return site.expr(input)
        return relaxed(site, fn, input)

    return Op(name, spelled(name, *spellings), build, gradient=zero)


def _round(site: Site, input: Any, *, decimals: int = 0) -> Any:
    """To the nearest whole number, halves to even, of the number scaled by a power of ten."""
    if not site.dtype.is_floating_point:
        return site.expr(input)
    if decimals == 0:
        return relaxed(site, relax.op.round, input)

    def body(x: Any) -> Any:
        ten = like(x, 10.0 ** abs(decimals))
        return tirx.round(x * ten) / ten if decimals > 0 else tirx.round(x / ten) * ten

    return elementwise(site, "round", body, input)


def _logit(site: Site, input: Any, eps: float | None = None) -> Any:
    def body(x: Any) -> Any:
        one = like(x, 1)
        if eps is not None:
            low, high = like(x, eps), one - like(x, eps)
            x = tirx.Select(x < low, low, tirx.Select(x > high, high, x))
        return tirx.log(x / (one - x))

    return elementwise(site, "logit", body, input)


def _xlogy(x: Any, y: Any) -> Any:
    """``x * log(y)``, and 0 where ``x`` is 0, unless ``y`` is NaN."""
    return _zero_times(x, y, tirx.log(y))


def _xlog1py(x: Any, y: Any) -> Any:
    return _zero_times(x, y, tirx.log1p(y))


def _zero_times(x: Any, y: Any, log: Any) -> Any:
    product = tirx.Select(tirx.EQ(x, like(x, 0)), x, x * log)
    return tirx.Select(numerics.isnan(y), y, product)


def _logaddexp(a: Any, b: Any) -> Any:
    """``log(exp(a) + exp(b))`` from the larger, which must not become inf - inf."""
    return _from_larger(a, b, lambda gap: tirx.log1p(tirx.exp(gap)))


def _logaddexp2(a: Any, b: Any) -> Any:
    return _from_larger(a, b, lambda gap: tirx.log1p(tirx.exp2(gap)) * like(gap, 1 / math.log(2)))


def _from_larger(a: Any, b: Any, tail: Callable[[Any], Any]) -> Any:
    same_infinity = tirx.And(tirx.EQ(a, b), tirx.EQ(tirx.abs(a), like(a, math.inf)))
    return tirx.Select(same_infinity, a, numerics.maximum(a, b) + tail(-tirx.abs(a - b)))


def _sinc(x: Any) -> Any:
    turned = x * like(x, math.pi)
    return tirx.Select(tirx.EQ(x, like(x, 0)), like(x, 1), tirx.sin(turned) / turned)


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * like(x, factor)


def _nextafter(site: Site, input: Any, other: Any) -> Any:
    if site.dtype not in (torch.float32, torch.float64):
        raise Unsupported("neighbours in half precision")
    return elementwise(site, "nextafter", tirx.nextafter, input, other)


NO_KERNEL = "TVM has no kernel for this special function"

ROWS: tuple[Op, ...] = (
    unary("sqrt", relax.op.sqrt, gradients.sqrt),
    unary("rsqrt", relax.op.rsqrt, gradients.rsqrt),
    unary("exp", relax.op.exp, gradients.exp),
    unary("exp2", tirx.exp2, gradients.exp2),
    unary("expm1", numerics.expm1, gradients.expm1),
    unary("log", relax.op.log, gradients.log),
    unary("log2", tirx.log2, gradients.log2),
    unary("log10", tirx.log10, gradients.log10),
    unary("log1p", tirx.log1p, gradients.log1p),
    unary("sin", relax.op.sin, gradients.sin),
    unary("cos", relax.op.cos, gradients.cos),
    unary("tan", relax.op.tan, gradients.tan),
    unary("asin", relax.op.asin, gradients.asin, *spelled("asin", "arcsin")),
    unary("acos", relax.op.acos, gradients.acos, *spelled("acos", "arccos")),
    unary("atan", relax.op.atan, gradients.atan, *spelled("atan", "arctan")),
    binary("atan2", tirx.atan2, gradients.atan2, *spelled("atan2", "arctan2")),
    unary("sinh", relax.op.sinh, gradients.sinh),
    unary("cosh", relax.op.cosh, gradients.cosh),
    unary("tanh", relax.op.tanh, gradients.tanh),
    unary("asinh", relax.op.asinh, gradients.asinh, *spelled("asinh", "arcsinh")),
    unary("acosh", relax.op.acosh, gradients.acosh, *spelled("acosh", "arccosh")),
    unary("atanh", relax.op.atanh, gradients.atanh, *spelled("atanh", "arctanh")),
    unary("erf", relax.op.erf, gradients.erf),
    unary("erfc", lambda x: numerics.libm("erfc", x), gradients.erfc),
    unary(
        "lgamma",
        lambda x: numerics.libm("lgamma", x),
        gradients.lgamma,
        *spelled("lgamma", "gammaln"),
    ),
    Op("digamma", spelled("digamma", "psi"), why=NO_KERNEL),
    unary("sigmoid", relax.op.sigmoid, gradients.sigmoid, *spelled("sigmoid", "expit")),
    Op("logit", spelled("logit"), _logit, gradient=gradients.logit),
    binary("xlogy", _xlogy, gradients.xlogy),
    binary("xlog1py", _xlog1py, gradients.xlog1py),
    binary("logaddexp", _logaddexp, gradients.logaddexp),
    binary("logaddexp2", _logaddexp2, gradients.logaddexp2),
    binary("hypot", tirx.hypot, gradients.hypot),
    Op("nextafter", spelled("nextafter"), _nextafter, gradient=same),
    _rounded("floor", relax.op.floor),
    _rounded("ceil", relax.op.ceil),
    _rounded("trunc", relax.op.trunc, "fix"),
    Op("round", spelled("round"), _round, gradient=zero),
    unary("frac", lambda x: x - tirx.trunc(x), same),
    unary("sinc", _sinc, gradients.sinc),
    unary("deg2rad", _times(math.pi / 180), gradients.deg2rad),
    unary("rad2deg", _times(180 / math.pi), gradients.rad2deg),
)
