"""Gradients of elements in other places."""

from __future__ import annotations

from typing import Any

import torch


def flip(grad: Any, result: Any, input: Any, *given: Any, **named: Any) -> Any:
    """Of dimensions in the opposite order."""
    return grad.flip(*given, **named)


def roll(grad: Any, result: Any, input: Any, shifts: Any, dims: Any = ()) -> Any:
    """Of elements moved around."""
    back = [-n for n in shifts] if isinstance(shifts, (tuple, list)) else -shifts
    return grad.roll(back, dims)


def tril(grad: Any, result: Any, input: Any, diagonal: int = 0) -> Any:
    """Of a lower triangle."""
    return grad.tril(diagonal)


def triu(grad: Any, result: Any, input: Any, diagonal: int = 0) -> Any:
    """Of an upper triangle."""
    return grad.triu(diagonal)


def diagonal(
    grad: Any, result: Any, input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """Of the elements on a diagonal."""
    return torch.zeros_like(input).diagonal_scatter(grad, offset, dim1, dim2)


def diag_embed(
    grad: Any, result: Any, input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Any:
    """Of elements put on a diagonal."""
    return grad.diagonal(offset, dim1, dim2)


def diagonal_scatter(
    grad: Any, result: Any, input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """Of a tensor with other elements on a diagonal, and of these."""
    beside = grad.diagonal_scatter(torch.zeros_like(src), offset, dim1, dim2)
    return beside, grad.diagonal(offset, dim1, dim2)
