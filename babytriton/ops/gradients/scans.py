"""Gradients of running sums, products and extremes: walks the other way."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.gradients.positions import positions
from babytriton.ops.gradients.precision import wide
from babytriton.ops.parts import part


@part
def recurrence(input: Any, factor: Any, dim: int, backwards: bool) -> Any:
    """Each element and the result before it, times the factor of the step between the two.

    ``r[k] = input[k] + factor[k] * r[k - 1]``, or backwards
    ``r[k] = input[k] + factor[k + 1] * r[k + 1]``. No step leads to the first element.

    Args:
        input: floats.
        factor: likewise, of the same shape.
        dim: to walk along.
        backwards: whether to walk from the last element to the first.
    """
    return torch.empty_like(input)  # its type: the numbers come from its row


def of_recurrence(
    grad: Any, result: Any, input: Any, factor: Any, dim: int, backwards: bool
) -> Any:
    """Of a recurrence: the one that walks the other way, and what each factor multiplied."""
    found = recurrence(grad, factor, dim, not backwards)
    if backwards:
        return found, _previous(found, dim, 0.0) * result
    return found, found * _previous(result, dim, 0.0)


def _previous(x: Any, dim: int, first: float) -> Any:
    """For each element the one before it along a dimension."""
    if x.ndim == 0:
        return torch.full_like(x, first)
    place = positions(x, x.shape[dim], dim, x.ndim)
    return torch.where(place == 0, first, torch.roll(x, 1, dim))


def cumsum(grad: Any, result: Any, input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Of a running sum: the one from the other end."""
    return grad.flip(dim).cumsum(dim).flip(dim) if input.ndim else grad


@wide
def cumprod(grad: Any, result: Any, input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Of a running product, whichever of the numbers are 0."""
    later = recurrence(grad, input.to(grad.dtype), dim, True)
    return _previous(result, dim, 1.0) * later


@wide
def logcumsumexp(grad: Any, result: Any, input: Any, dim: int) -> Any:
    """Of the logarithm of a running sum of exponentials, none of which is larger than the sum."""
    steps = torch.exp(_previous(result, dim, 0.0) - result)
    return torch.exp(input - result) * recurrence(grad, steps, dim, True)


@wide
def extreme(grad: Any, result: Any, input: Any, dim: int) -> Any:
    """Of a running maximum or minimum: each place has the sum over the steps that it stays."""
    grad, index = grad[0], result[1]
    begins = index == positions(index, input.shape[dim] if input.ndim else 1, dim, input.ndim)
    stays = torch.where(begins, 0.0, torch.ones_like(grad))
    return torch.where(begins, recurrence(grad, stays, dim, True), 0.0)
