"""Gradients of writing elements by tensors of indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from babytriton.ops import assignments
from babytriton.ops.gradients.positions import padded
from babytriton.ops.gradients.precision import is_tensor, wide
from babytriton.ops.refusals import Unsupported


def _read(grad: Any, dim: int, index: Any, source: Any) -> Any:
    """What was written, read again."""
    return _beside(grad.gather(dim, index), index, source)


def _beside(grad: Any, index: Any, source: Any) -> Any:
    """The gradient of a source; where it is larger than the index, the rest was not written."""
    if source.ndim != index.ndim or tuple(source.shape) == tuple(index.shape):
        return grad
    return padded(grad, [(0, n - m) for n, m in zip(source.shape, index.shape)])


def _written(source: Any, index: Any) -> Any:
    """The part of a source that is written."""
    if tuple(source.shape) == tuple(index.shape):
        return source
    return source[tuple(slice(0, n) for n in index.shape)]


def scatter(
    grad: Any,
    result: Any,
    input: Any,
    dim: int,
    index: Any,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Any:
    """Of a tensor with other elements at some places, and of these."""
    source = value if src is None else src
    if reduce == "multiply":
        if not is_tensor(source) or source.ndim != index.ndim:
            raise Unsupported("products with one number")
        return scatter_reduce(grad, result, input, dim, index, source, "prod")
    kept = grad if reduce == "add" else grad.scatter(dim, index, 0.0)
    return kept, None, None, _read(grad, dim, index, source) if is_tensor(source) else None


def scatter_add(grad: Any, result: Any, input: Any, dim: int, index: Any, src: Any) -> Any:
    """Of a tensor to which elements are added, and of these."""
    return grad, None, None, _read(grad, dim, index, src)


@wide
def scatter_reduce(
    grad: Any,
    result: Any,
    input: Any,
    dim: int,
    index: Any,
    src: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """As torch's ``scatter_reduce_backward``."""
    at = (dim, index)
    if reduce == "sum":
        kept, written = grad, grad.gather(*at)
    elif reduce == "mean":
        ones = torch.ones_like(grad) if include_self else torch.zeros_like(grad)
        count = ones.scatter_add(*at, torch.ones_like(src)).clamp(min=1)
        kept = grad / count
        written = kept.gather(*at)
    elif reduce == "prod":
        kept, written = _of_products(grad, result, input, dim, index, src, include_self)
    else:
        value = result.gather(*at)
        cut = _written(src, index)
        stays, wins = input == result, cut == value
        winners = stays.to(grad.dtype).scatter_add(*at, wins.to(grad.dtype))
        share = grad / winners
        kept = torch.where(stays, share, 0.0)
        written = torch.where(wins, share.gather(*at), 0.0)
    if not include_self:
        kept = kept.scatter(*at, 0.0)
    return kept, None, None, _beside(written, index, src)


def _of_products(
    grad: Any, result: Any, input: Any, dim: int, index: Any, src: Any, include_self: bool
) -> Any:
    """Without a division by zero: the product of the others is computed for the zeros."""
    at = (dim, index)
    cut = _written(src, index)
    own = torch.where(input == 0, 1.0, input)
    others = own.scatter_reduce(*at, src, "prod", include_self=include_self)
    kept = grad * others / own
    zero = cut == 0
    zeros = torch.zeros_like(input).scatter_add(*at, zero.to(input.dtype)).gather(*at)
    single = zero & (zeros == 1)
    rest = input.scatter_reduce(
        *at, torch.where(single, 1.0, cut), "prod", include_self=include_self
    )
    quotient = (grad * result).gather(*at) / torch.where(zero, 1.0, cut)
    return kept, torch.where(single, (grad * rest).gather(*at), quotient)


def index_add(
    grad: Any,
    result: Any,
    input: Any,
    dim: int,
    index: Any,
    source: Any,
    *,
    alpha: Any = 1,
) -> Any:
    """Of a tensor to which slices are added, and of these."""
    found = _slices(grad, dim, index, source)
    return grad, None, None, found if type(alpha) is int and alpha == 1 else found * alpha


def index_copy(grad: Any, result: Any, input: Any, dim: int, index: Any, source: Any) -> Any:
    """Of a tensor with other slices, and of these."""
    return grad.index_fill(dim, index, 0), None, None, _slices(grad, dim, index, source)


def _slices(grad: Any, dim: int, index: Any, source: Any) -> Any:
    """The slices at some places; a single one may have come without their dimension."""
    return grad.index_select(dim, index.reshape(-1)).reshape(source.shape)


def index_fill(grad: Any, result: Any, input: Any, dim: int, index: Any, value: Any) -> Any:
    """Of a tensor with one number in some slices, and of that."""
    if not is_tensor(value):
        return grad.index_fill(dim, index, 0)
    filled = torch.zeros_like(grad, dtype=torch.bool).index_fill(dim, index, True)
    return torch.where(filled, 0.0, grad), None, None, torch.where(filled, grad, 0.0).sum()


def index_put(
    grad: Any,
    result: Any,
    input: Any,
    indices: Sequence[Any],
    values: Any,
    accumulate: bool = False,
) -> Any:
    """Of a tensor with other elements at some places, and of these."""
    if any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices):
        return _masked(grad, indices, values, accumulate)
    # In brackets one without dimensions would be a number.
    shaped = any(x is not None and x.ndim > 0 for x in indices)
    at = tuple(
        slice(None) if x is None else x.reshape(1) if shaped and x.ndim == 0 else x for x in indices
    )
    put = torch.ops.aten.index_put.default  # the one that takes None
    kept = grad if accumulate else put(grad, indices, torch.zeros_like(values))
    return kept, None, grad[at]


def put_at(grad: Any, result: Any, input: Any, item: tuple[Any, ...], values: Any) -> Any:
    """Of a tensor with other elements at one index, and of these."""
    return assignments.put_at(grad, item, torch.zeros_like(values)), None, grad[item]


def _masked(grad: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    [mask, *more] = indices
    several = type(values.numel()) is not int or values.numel() > 1
    if mask is None or more or several or mask.dtype != torch.bool:
        raise Unsupported("how many elements a mask selects depends on data")
    mask = mask.reshape(*mask.shape, *[1] * (grad.ndim - mask.ndim))
    kept = grad if accumulate else torch.where(mask, 0.0, grad)
    return kept, None, torch.where(mask, grad, 0.0).sum().reshape(values.shape)


def select_scatter(grad: Any, result: Any, input: Any, src: Any, dim: int, index: int) -> Any:
    """Of a tensor with one other slice, and of that."""
    beside = grad.select_scatter(torch.zeros_like(src), dim, index)
    return beside, grad.select(dim, index)


def slice_scatter(
    grad: Any,
    result: Any,
    input: Any,
    src: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Any:
    """Of a tensor with other elements in a range of a dimension, and of these."""
    beside = grad.slice_scatter(torch.zeros_like(src), dim, start, end, step)
    part = (slice(None),) * (dim % input.ndim) + (slice(start, end, step),)
    return beside, grad[part]
