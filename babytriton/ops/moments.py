"""Variances and standard deviations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import te, tirx

from babytriton.ops import numerics
from babytriton.ops.axes import Axes, dims_of
from babytriton.ops.gradients import moments as gradients
from babytriton.ops.parts import part
from babytriton.ops.site import Site
from babytriton.ops.sizes import is_symbolic
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor
Build = Callable[..., Any]


def _moments(site: Site, input: Value, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operands of every variance: its axes, and its correction (torch's two ways to say it)."""
    dim, correction, keepdim = _moment_arguments(*args, **kwargs)
    return Axes.of(input, dim, keepdim), correction


def _moment_arguments(
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Any, float, bool]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, float(unbiased) if correction is None else correction, keepdim


def variance(x: te.Tensor, axes: Axes, correction: float = 0) -> tuple[te.Tensor, te.Tensor]:
    """The mean and the variance, in two passes: E[x^2] - E[x]^2 would cancel.

    The sum for the mean is of differences from the first element, so that of rows far from zero
    no digits are lost.

    Args:
        x: floats in the dtype to compute in.
        axes: to reduce.
        correction: how much less than the number of elements the sum of squared deviations is
            divided by; a divisor of 0 gives NaN, or inf, as in torch.
    """
    mean = average(x, axes)
    return mean, scatter(x, axes, mean, axes, correction)


def average(x: te.Tensor, axes: Axes) -> te.Tensor:
    """The mean."""
    first = axes.each("first", lambda *i: axes.first(x, axes.full(i)))
    total = axes.reduce("sum", lambda *i: x(*i) - axes.at(first, i))
    return axes.each("mean", lambda *i: axes.over_length(total(*i)) + first(*i))


def scatter(
    x: te.Tensor, centres: Axes, mean: te.Tensor, axes: Axes, correction: float
) -> te.Tensor:
    """The variance about a mean, whose axes may differ from the result's in what they keep."""

    def squared(*index: Any) -> Any:
        deviation = x(*index) - centres.at(mean, index)
        return deviation * deviation

    squares = axes.reduce("squares", squared)
    scale = _inverse(axes, correction, x.dtype)
    return axes.each("variance", lambda *i: squares(*i) * scale)


def _inverse(axes: Axes, correction: float, dtype: str) -> tirx.PrimExpr:
    """1 / (length - correction); infinity where that is not positive."""
    length = axes.length
    if not is_symbolic(length):
        # TVM refuses to divide by the constant 0.
        return tirx.const(1 / (length - correction) if length > correction else math.inf, dtype)
    divisor = axes.count(dtype) - tirx.const(correction, dtype)
    one, infinity = tirx.const(1, dtype), tirx.const(math.inf, dtype)
    return tirx.Select(divisor > tirx.const(0, dtype), one / divisor, infinity)


def widened(x: te.Tensor, dtype: torch.dtype) -> te.Tensor:
    """``x`` in the dtype that torch computes ``dtype`` in."""
    wide = dtype_of(numerics.opmath(dtype)).name
    if str(x.dtype) == wide:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(wide), name="widened")


def _var(name: str, finish: Callable[[Any], Any]) -> Build:
    def build(site: Site, input: Value, *args: Any, **kwargs: Any) -> Any:
        axes, correction = _moments(site, input, args, kwargs)
        narrow = dtype_of(site.dtype).name

        def fn(x: te.Tensor) -> te.Tensor:
            _, found = variance(widened(x, site.dtype), axes, correction)
            return axes.each(name, lambda *i: finish(found(*i)).astype(narrow))

        return site.te(name, fn, input.expr)

    return build


def _var_mean(spread: Build) -> Build:
    # Two kernels: one that writes both results could not use a GPU's threads together.
    def decompose(input: Any, *args: Any, **kwargs: Any) -> Any:
        dim, _, keepdim = _moment_arguments(*args, **kwargs)
        return spread(input, *args, **kwargs), torch.mean(input, dim, keepdim)

    return decompose


# In parts, for gradients: the way back needs the mean.


@part
def mean_of(input: Any, dims: tuple[int, ...]) -> Any:
    """The mean over dimensions that it keeps, in the dtype that torch computes in."""
    return input.to(numerics.opmath(input.dtype)).mean(dims, keepdim=True)


def _mean_of(site: Site, input: Value, dims: tuple[int, ...]) -> Any:
    axes = Axes.of(input, dims, True)
    return site.te("mean", lambda x: average(widened(x, site.dtype), axes), input.expr)


@part
def deviation(
    input: Any,
    mean: Any,
    dims: tuple[int, ...],
    correction: float,
    keepdim: bool,
    root: bool,
    dtype: torch.dtype,
) -> Any:
    """The variance of numbers whose mean is known, or the root of it.

    Args:
        input: the numbers.
        mean: of them, with the dimensions kept, in the dtype to compute in.
        dims: to reduce.
        correction: to how many numbers there are.
        keepdim: whether the result keeps the dimensions.
        root: whether it is a standard deviation.
        dtype: of the result.
    """
    total = torch.square(input.to(mean.dtype) - mean).sum(dims, keepdim)
    found = total / gradients.divisor(input, dims, correction)
    return (torch.sqrt(found) if root else found).to(dtype)


def _deviation(
    site: Site,
    input: Value,
    mean: Value,
    dims: tuple[int, ...],
    correction: float,
    keepdim: bool,
    root: bool,
    dtype: torch.dtype,
) -> Any:
    axes, kept = Axes.of(input, dims, keepdim), Axes.of(input, dims, True)
    narrow = dtype_of(dtype).name

    def fn(x: te.Tensor, centre: te.Tensor) -> te.Tensor:
        found = scatter(widened(x, dtype), kept, centre, axes, correction)
        finish = te.sqrt if root else lambda x: x
        return axes.each("deviation", lambda *i: finish(found(*i)).astype(narrow))

    return site.te("deviation", fn, input.expr, mean.expr)


def _derived(input: Any, root: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The variance or its root, and the mean with the dimensions kept."""
    dim, correction, keepdim = _moment_arguments(*args, **kwargs)
    dims = dims_of(dim, input.ndim)
    mean = mean_of(input, dims)
    return deviation(input, mean, dims, correction, keepdim, root, input.dtype), mean


def _derived_var(root: bool) -> Build:
    return lambda input, *args, **kwargs: _derived(input, root, args, kwargs)[0]


def _derived_var_mean(root: bool) -> Build:
    def derive(input: Any, *args: Any, **kwargs: Any) -> Any:
        found, mean = _derived(input, root, args, kwargs)
        return found, mean.reshape(found.shape).to(found.dtype)

    return derive


ROWS: tuple[Op, ...] = (
    Op("var", (torch.var, T.var), _var("var", lambda x: x), derive=_derived_var(False)),
    Op("std", (torch.std, T.std), _var("std", te.sqrt), derive=_derived_var(True)),
    Op(
        "var_mean",
        (torch.var_mean,),
        decompose=_var_mean(torch.var),
        derive=_derived_var_mean(False),
    ),
    Op(
        "std_mean",
        (torch.std_mean,),
        decompose=_var_mean(torch.std),
        derive=_derived_var_mean(True),
    ),
)

PARTS: tuple[Op, ...] = (
    Op("mean_of", (mean_of,), _mean_of, gradient=gradients.mean_of),
    Op("deviation", (deviation,), _deviation, gradient=gradients.deviation),
)
