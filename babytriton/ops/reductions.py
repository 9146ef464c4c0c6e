"""Reductions over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, te, tirx

from babytriton.ops import numerics
from babytriton.ops.axes import Axes
from babytriton.ops.gradients import reductions as gradients
from babytriton.ops.gradients.positions import positions
from babytriton.ops.moments import widened
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_symbolic
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

T = torch.Tensor
Build = Callable[..., Any]


# Sums and what is made of them


def _sum(
    site: Site, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    axes = Axes.of(input, dim, keepdim)
    x = site.expr(input, site.dtype)
    if not axes.dims:
        return x
    if site.dtype == torch.bool:
        raise Unsupported("a sum of bools that is bool again")
    if dtype_of(site.dtype).is_half or axes.wide_sums:
        return _total(site, "sum", x, axes, lambda x: x)
    return relax.op.sum(x, axis=list(axes.dims), keepdims=axes.keepdim)


def _mean(
    site: Site, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    axes = Axes.of(input, dim, keepdim)
    x = site.expr(input, site.dtype)
    return _total(site, "mean", x, axes, lambda x: x, axes.over_length)


def _nansum(
    site: Site, input: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if not input.meta.dtype.is_floating_point:
        return _sum(site, input, dim, keepdim)
    axes = Axes.of(input, dim, keepdim)
    return _total(site, "nansum", site.expr(input, site.dtype), axes, _without_nan)


def _nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    counted = (~input.isnan()).sum(dim, keepdim)
    return torch.nansum(input, dim, keepdim, dtype=dtype) / counted


def _prod(site: Site, input: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    axes = Axes.of(input, dim, keepdim)
    x = site.expr(input, site.dtype)
    if not axes.dims:
        return x
    if site.dtype == torch.bool:
        raise Unsupported("a product of bools that is bool again")
    if dtype_of(site.dtype).is_half:
        return _total(site, "prod", x, axes, lambda x: x, reducer=_product)
    return relax.op.prod(x, axis=list(axes.dims), keepdims=axes.keepdim)


def _count_nonzero(site: Site, input: Value, dim: Any = None) -> Any:
    axes = Axes.of(input, dim)
    one, zero = int64(1), int64(0)

    def fn(x: te.Tensor) -> te.Tensor:
        return axes.reduce("count", lambda *i: tirx.Select(numerics.is_true(x(*i)), one, zero))

    return site.te("count_nonzero", fn, input.expr)


def _trace(input: Any) -> Any:
    return torch.diagonal(input).sum()


def _total(
    site: Site,
    name: str,
    x: relax.Expr,
    axes: Axes,
    element: Callable[[Any], Any],
    finish: Callable[[Any], Any] = lambda total: total,
    *,
    reducer: Build = te.sum,
) -> Any:
    """One kernel that adds ``element`` of every number in torch's accumulator, then rounds once."""
    accumulated = _accumulated(site.dtype)

    def fn(x: te.Tensor) -> te.Tensor:
        total = axes.reduce(name, lambda *i: element(accumulated(x(*i))), reducer)
        return axes.each("finish", lambda *i: finish(total(*i)).astype(_name(site.dtype)))

    return site.te(name, fn, x)


def _accumulated(dtype: torch.dtype) -> Callable[[Any], Any]:
    wide = _name(numerics.opmath(dtype))
    return lambda x: x.astype(wide)


def _name(dtype: torch.dtype) -> str:
    return dtype_of(dtype).name


def _without_nan(x: Any) -> Any:
    return tirx.Select(numerics.isnan(x), tirx.const(0, x.ty.dtype), x)


_product = te.comm_reducer(lambda x, y: x * y, lambda dtype: tirx.const(1, dtype), name="prod")


# Extremes


def extreme(
    name: str,
    axes: Axes,
    x: te.Tensor,
    largest: bool,
    element: Callable[[Any], Any] = lambda x: x,
    *,
    dtype: str | None = None,
) -> te.Tensor:
    """The largest or smallest ``element`` of ``x``, NaN if there is one."""
    nan, reducer = ("max", te.max) if largest else ("min", te.min)
    found = axes.reduce(
        f"{name}_key", lambda *i: numerics.order_key(element(x(*i)), nan=nan), reducer
    )
    return axes.each(name, lambda *i: numerics.from_order_key(found(*i), dtype or str(x.dtype)))


def _extreme(largest: bool) -> Build:
    name = "amax" if largest else "amin"

    def build(site: Site, input: Value, dim: Any = (), keepdim: bool = False) -> Any:
        axes = Axes.of(input, dim, keepdim)
        return site.te(name, lambda x: extreme(name, axes, x, largest), input.expr)

    return build


def _extreme_index(largest: bool) -> Build:
    """The first position of the extreme, in a second pass over what is compared with it.

    Both passes reduce integers, which every schedule knows to vectorize and to share out; a
    reduction of pairs only runs one by one.
    """
    nan, reducer = ("max", te.max) if largest else ("min", te.min)
    name, extreme = ("argmax", "largest") if largest else ("argmin", "smallest")

    def build(site: Site, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
        axes = Axes.of(input, dim, keepdim)
        # 32 bits where they do: twice as many fit in a vector.
        is_short = not is_symbolic(axes.length) and axes.length < 2**31
        counter = "int32" if is_short else "int64"

        def fn(x: te.Tensor) -> te.Tensor:
            def key(*index: Any) -> Any:
                return numerics.order_key(x(*index), nan=nan, signed_zeros=False)

            best = axes.reduce(f"{extreme}_key", key, reducer)
            wide = numerics.key_type(str(x.dtype))
            top = axes.each(extreme, lambda *i: numerics.from_order_key(best(*i), wide))

            def place(*index: Any) -> Any:
                value, wanted = x(*index).astype(wide), axes.at(top, index)
                is_found = value == wanted
                if "float" in wide:  # NaN equals none
                    are_nan = tirx.And(numerics.isnan(value), numerics.isnan(wanted))
                    is_found = tirx.Or(is_found, are_nan)
                position, other = axes.position(index).astype(counter), axes.count(counter)
                return tirx.Select(is_found, position, other)

            first = axes.reduce("first", place, te.min)
            return axes.each("index", lambda *i: first(*i).astype("int64"))

        return site.te(name, fn, input.expr)

    return build


def _max(largest: bool) -> Build:
    """``torch.max`` and ``torch.min``: of everything, over a dimension, or of two tensors."""
    values, indices = (torch.amax, torch.argmax) if largest else (torch.amin, torch.argmin)
    elementwise = torch.maximum if largest else torch.minimum

    def decompose(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        if other is not None or isinstance(dim, Value):
            return elementwise(input, dim if other is None else other)
        if dim is None:
            return values(input)
        # Separate kernels, so that an unused one of them is not computed.
        return values(input, dim, keepdim), _index(indices, input, dim, keepdim)

    return decompose


def _derived_max(largest: bool) -> Build:
    """The same, with the index from the extreme: that row by row is one kernel."""
    plain, extreme = _max(largest), torch.amax if largest else torch.amin

    def derive(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        if other is not None or dim is None or isinstance(dim, Value):
            return plain(input, dim, keepdim, other=other)
        values = extreme(input, dim, keepdim=True)
        is_it = (input == values) | torch.isnan(input)
        length = input.shape[dim] if input.ndim else 1
        place = positions(values, length, dim, input.ndim)
        index = torch.amin(torch.where(is_it, place, length), dim, keepdim)
        return values if keepdim else values.squeeze(dim), index

    return derive


def _positions(site: Site, like: Value, length: Any, dim: int = 0, ndim: int = 1) -> Any:
    return site.compute("place", site.shape, lambda _, *i: i[dim] if i else int64(0), like.expr)


def _index(indices: Build, input: Any, dim: int, keepdim: bool) -> Any:
    # torch finds the place of the largest bool in max(dim), but has no argmax of bools.
    numbers = input.to(torch.uint8) if input.dtype == torch.bool else input
    return indices(numbers, dim, keepdim)


def _aminmax(input: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    dims = () if dim is None else dim
    return torch.amin(input, dims, keepdim), torch.amax(input, dims, keepdim)


def _any_all(largest: bool) -> Build:
    name = "any" if largest else "all"

    def build(site: Site, input: Value, dim: Any = None, keepdim: bool = False) -> Any:
        axes = Axes.of(input, dim, keepdim)

        def fn(x: te.Tensor) -> te.Tensor:
            found = axes.reduce(
                name,
                lambda *i: numerics.is_true(x(*i)).astype("int32"),
                te.max if largest else te.min,
            )
            return axes.each("truth", lambda *i: found(*i).astype(_name(site.dtype)))

        return site.te(name, fn, input.expr)

    return build


# Logarithms of sums


def _logsumexp(site: Site, input: Value, dim: Any, keepdim: bool = False) -> Any:
    axes = Axes.of(input, dim, keepdim)

    def fn(x: te.Tensor) -> te.Tensor:
        wide = widened(x, site.dtype)
        # te.max drops NaN and stops at the least finite float: here both are right, since NaN
        # comes back through the sum, and exp(-inf) is 0 beside any finite number.
        top = axes.reduce("top", lambda *i: wide(*i), te.max)
        infinity = tirx.const(math.inf, wide.dtype)
        zero = tirx.const(0, wide.dtype)
        finite = axes.each("finite", lambda *i: tirx.Select(top(*i) == infinity, zero, top(*i)))
        total = axes.reduce("total", lambda *i: te.exp(wide(*i) - axes.at(finite, i)))
        return axes.each(
            "logsumexp", lambda *i: (te.log(total(*i)) + finite(*i)).astype(_name(site.dtype))
        )

    return site.te("logsumexp", fn, site.expr(input, site.dtype))


SORTS = "it needs the elements sorted"

ROWS: tuple[Op, ...] = (
    Op("sum", (torch.sum, T.sum), _sum, gradient=gradients.sum),
    Op("mean", (torch.mean, T.mean), _mean, gradient=gradients.mean),
    Op("nansum", (torch.nansum, T.nansum), _nansum, gradient=gradients.nansum),
    Op("nanmean", (torch.nanmean, T.nanmean), decompose=_nanmean),
    Op("prod", (torch.prod, T.prod), _prod, gradient=gradients.prod),
    Op("count_nonzero", (torch.count_nonzero, T.count_nonzero), _count_nonzero),
    Op("trace", (torch.trace, T.trace), decompose=_trace),
    Op("amax", (torch.amax, T.amax), _extreme(True), gradient=gradients.extreme),
    Op("amin", (torch.amin, T.amin), _extreme(False), gradient=gradients.extreme),
    Op("aminmax", (torch.aminmax, T.aminmax), decompose=_aminmax),
    Op("argmax", (torch.argmax, T.argmax), _extreme_index(True)),
    Op("argmin", (torch.argmin, T.argmin), _extreme_index(False)),
    Op(
        "max",
        (torch.max, T.max),
        decompose=_max(True),
        derive=_derived_max(True),
        gradient=gradients.largest,
    ),
    Op(
        "min",
        (torch.min, T.min),
        decompose=_max(False),
        derive=_derived_max(False),
        gradient=gradients.smallest,
    ),
    Op("any", (torch.any, T.any), _any_all(True)),
    Op("all", (torch.all, T.all), _any_all(False)),
    Op(
        "logsumexp",
        (torch.logsumexp, T.logsumexp, torch.special.logsumexp),
        _logsumexp,
        gradient=gradients.logsumexp,
    ),
    Op("median", (torch.median, T.median), why=SORTS, gradient=gradients.selected),
    Op("nanmedian", (torch.nanmedian, T.nanmedian), why=SORTS, gradient=gradients.selected),
    Op("mode", (torch.mode, T.mode), why=SORTS, gradient=gradients.mode),
    Op("quantile", (torch.quantile, T.quantile), why=SORTS),
    Op("nanquantile", (torch.nanquantile, T.nanquantile), why=SORTS),
)

PARTS: tuple[Op, ...] = (Op("positions", (positions,), _positions),)
