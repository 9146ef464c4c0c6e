"""Gradients of joining tensors and of taking them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from babytriton.ops.gradients.positions import padded_in, positions, wrapped
from babytriton.ops.gradients.precision import is_tensor, wide


def cat(grad: Any, result: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Of tensors one after the other."""
    found: list[Any] = []
    start, dim = 0, dim % grad.ndim
    for x in tensors:
        # torch leaves out vectors without elements, whatever the rank of the others.
        if x.ndim != grad.ndim:
            found.append(None)
            continue
        size = x.shape[dim]
        found.append(grad.narrow(dim, start, size) if x.dtype.is_floating_point else None)
        start = start + size
    return (found,)


def stack(grad: Any, result: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Of tensors beside each other along a new dimension."""
    return (list(grad.unbind(dim)),)


def _joined(grads: Any, dim: int) -> Any:
    return torch.cat(list(grads), dim)


def pieces(grads: Any, results: Any, input: Any, _: Any = None, dim: int = 0, **__: Any) -> Any:
    """Of pieces that follow each other."""
    return _joined(grads, dim)


def split(grads: Any, results: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Of the same, under the names that ``split`` has."""
    return pieces(grads, results, tensor, *args, **kwargs)


def unbind(grads: Any, results: Any, input: Any, dim: int = 0) -> Any:
    """Of the slices along a dimension."""
    return torch.stack(list(grads), dim)


def narrow(grad: Any, result: Any, input: Any, dim: int, start: Any, length: Any) -> Any:
    """Of a part of a dimension, which may start where the run says."""
    dim, size = dim % input.ndim, input.shape[dim]
    if not is_tensor(start):
        start = start + size if start < 0 else start
        return padded_in(grad, dim, start, size - start - length)
    offset = positions(input, size) - wrapped(start.reshape(()), size)
    inside = (offset >= 0) & (offset < length)
    shape = [size if d == dim else 1 for d in range(input.ndim)]
    found = grad.index_select(dim, offset.clamp(0, length - 1))
    return torch.where(inside.reshape(shape), found, 0.0)


@wide
def repeat(grad: Any, result: Any, input: Any, *given: Any, **named: Any) -> Any:
    """Of copies beside each other, as ``repeat`` and ``tile`` make them."""
    [first, *others] = given or tuple(named.values())
    counts = list(first) if isinstance(first, (tuple, list)) else [first, *others]
    sizes = list(input.shape)
    ndim = max(len(counts), len(sizes))
    counts = [1] * (ndim - len(counts)) + counts
    sizes = [1] * (ndim - len(sizes)) + sizes
    shape = [n for pair in zip(counts, sizes) for n in pair]
    dims = [2 * d for d, count in enumerate(counts) if type(count) is not int or count != 1]
    total = grad.reshape(shape).sum(dims) if dims else grad
    return total.reshape(input.shape)


@wide
def repeat_interleave(
    grad: Any,
    result: Any,
    input: Any,
    repeats: Any,
    dim: int | None = None,
    *,
    output_size: Any = None,
) -> Any:
    """Of elements or slices each of which stands several times in a row."""
    shape = [math.prod(input.shape)] if dim is None else list(input.shape)
    dim = 0 if dim is None else dim % max(len(shape), 1)
    if is_tensor(repeats):
        every = positions(input, shape[dim])
        index = torch.repeat_interleave(every, repeats, output_size=grad.shape[dim])
        zeros = grad.new_zeros(shape)
        return zeros.index_add(dim, index, grad).reshape(input.shape)
    if not shape:
        return grad.sum()
    total = grad.reshape([*shape[: dim + 1], repeats, *shape[dim + 1 :]]).sum(dim + 1)
    return total.reshape(input.shape)
