"""Gradients of reductions."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.axes import dims_of
from babytriton.ops.gradients.elementwise import maximum, minimum
from babytriton.ops.gradients.positions import positions
from babytriton.ops.gradients.precision import is_tensor, wide
from babytriton.ops.sizes import is_symbolic


def spread(reduced: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    """What a reduction gave, with its dimensions of the input's rank: it broadcasts to it."""
    if keepdim:
        return reduced
    for d in dims_of(dim, input.ndim):
        reduced = reduced.unsqueeze(d)
    return reduced


def sum(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Of a sum: each number's is the same."""
    return spread(grad, input, dim, keepdim).expand(input.shape)


@wide
def mean(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Of a sum that is divided by how many numbers there are."""
    means = grad.numel()
    count = input.numel() // means if is_symbolic(means) or means else 1
    return (spread(grad, input, dim, keepdim) / count).expand(input.shape)


def nansum(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Of a sum without the NaN."""
    return torch.where(torch.isnan(input), 0.0, spread(grad, input, dim, keepdim))


@wide
def prod(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Of a product: each number's is the product of the others, whichever of them are 0.

    Sums of the zeros, which are 0, stand for them, so that this has the right gradient in turn.
    """
    dims = dims_of(dim, input.ndim)
    is_zero = input == 0
    others = torch.where(is_zero, 1.0, input)
    count = torch.sum(is_zero.to(input.dtype), dims, keepdim=True)
    zeros = torch.sum(torch.where(is_zero, input, 0.0), dims, keepdim=True)
    product = others.prod() if dim is None else others.prod(dim, keepdim=True)
    of_zeros = torch.where(count == 1, 1.0, torch.where(count == 2, zeros - input, 0.0))
    of_others = torch.where(count == 0, 1.0, torch.where(count == 1, zeros, 0.0))
    slope = torch.where(is_zero, of_zeros, of_others) * (product / others)
    return spread(grad, input, dim, keepdim) * slope


def extreme(grad: Any, result: Any, input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Of the largest number, or of the smallest: those that are it share it evenly."""
    is_it = input == spread(result, input, dim, keepdim)  # in their own dtype, which is rounded
    return shared(spread(grad, input, dim, keepdim), is_it, dims_of(dim, input.ndim))


@wide
def shared(grad: Any, is_it: Any, dims: tuple[int, ...]) -> Any:
    """The gradient of one number of each row, in equal parts for those of the row that are it."""
    chosen = is_it.to(grad.dtype)
    return chosen * (grad / torch.sum(chosen, dims, keepdim=True))


def largest(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None
) -> Any:
    """Of ``torch.max``: over a dimension the first of the largest has it, and of all they share."""
    if other is not None or is_tensor(dim):
        first, second = maximum(grad, result, input, dim if other is None else other)
        return first, second, None, second
    return selected(grad, result, input, dim)


def smallest(
    grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None
) -> Any:
    """Of ``torch.min``, likewise."""
    if other is not None or is_tensor(dim):
        first, second = minimum(grad, result, input, dim if other is None else other)
        return first, second, None, second
    return selected(grad, result, input, dim)


def selected(grad: Any, result: Any, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Of a number that is chosen: by its index along a dimension, or the equals of all share it."""
    if dim is None:
        return _selected_of_all(grad, result, input)
    return placed(grad[0], result[1], input, dim)


def placed(grad: Any, index: Any, input: Any, dim: int) -> Any:
    """The gradient at an index along a dimension, and 0 elsewhere.

    Args:
        grad: of what was chosen, with or without the dimension.
        index: of that.
        input: what it was chosen from.
        dim: along which one number was chosen.
    """
    keepdim = grad.ndim == input.ndim
    index, grad = (spread(x, input, dim, keepdim) for x in (index, grad))
    length = input.shape[dim] if input.ndim else 1
    return torch.where(positions(index, length, dim, input.ndim) == index, grad, 0.0)


@wide
def _selected_of_all(grad: Any, result: Any, input: Any) -> Any:
    is_it = (input == result) | (torch.isnan(input) & torch.isnan(result))
    return shared(grad, is_it, dims_of(None, input.ndim))


def mode(grad: Any, result: Any, input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Of the most frequent number along a dimension."""
    return placed(grad[0], result[1], input, dim)


@wide
def logsumexp(grad: Any, result: Any, input: Any, dim: Any, keepdim: bool = False) -> Any:
    """Of the logarithm of the sum of exponentials."""
    grad, result = (spread(x, input, dim, keepdim) for x in (grad, result))
    return grad * torch.exp(input - result)
