"""Gradients of sorts and selections by rank: to where the results' indices say they come from."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.gradients.positions import positions


def _put_back(grad: Any, index: Any, input: Any, dim: int) -> Any:
    # No place is named twice.
    return torch.zeros_like(input).scatter(dim, index, grad)


def sort(
    grads: Any,
    results: Any,
    input: Any,
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
) -> Any:
    """Of a dimension in order."""
    return _put_back(grads[0], results[1], input, dim)


def topk(
    grads: Any,
    results: Any,
    input: Any,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Any:
    """Of the largest or smallest numbers of a dimension."""
    return _put_back(grads[0], results[1], input, dim)


def kthvalue(
    grads: Any, results: Any, input: Any, k: int, dim: int = -1, keepdim: bool = False
) -> Any:
    """Of the number of a rank in a dimension."""
    if input.ndim == 0:
        return grads[0].reshape(())
    dim %= input.ndim
    grad, index = grads[0], results[1]
    if not keepdim:
        grad, index = grad.unsqueeze(dim), index.unsqueeze(dim)
    here = positions(input, input.shape[dim], dim, input.ndim) == index
    return torch.where(here, grad, 0.0)
