"""Gradients of views: the elements go back to where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from babytriton.ops.value import Value


def reshaped(grad: Any, result: Any, input: Any, *_: Any, **__: Any) -> Any:
    """Of the same elements in the same order under another shape."""
    return grad.reshape(input.shape)


def reshaped_each(grads: Any, results: Any, *tensors: Any) -> Any:
    """Of several of them, given one by one or as a sequence."""
    values = tensors if isinstance(tensors[0], Value) else tensors[0]
    each = grads if isinstance(grads, (tuple, list)) else [grads]
    found = [grad.reshape(x.shape) for grad, x in zip(each, values)]
    return (found if isinstance(tensors[0], Value) else [found],)


def permuted(grad: Any, result: Any, input: Any, *order: Any, dims: Sequence[int] = ()) -> Any:
    """Of dimensions in another order."""
    if order:
        dims = order if isinstance(order[0], int) else order[0]
    places = [d % input.ndim for d in dims]
    return grad.permute([places.index(d) for d in range(input.ndim)])


def transposed(grad: Any, result: Any, input: Any, dim0: int, dim1: int) -> Any:
    """Of two dimensions that were exchanged."""
    return grad.transpose(dim0, dim1)


def swapaxes(grad: Any, result: Any, input: Any, axis0: int, axis1: int) -> Any:
    """The same under NumPy's name."""
    return grad.transpose(axis0, axis1)


def movedim(grad: Any, result: Any, input: Any, source: Any, destination: Any) -> Any:
    """Of dimensions that were moved."""
    return torch.movedim(grad, destination, source)


def reversed_dims(grad: Any, result: Any, input: Any) -> Any:
    """Of all dimensions in the opposite order."""
    return grad.permute(list(reversed(range(input.ndim))))


def swapped_last_dims(grad: Any, result: Any, input: Any) -> Any:
    """Of a matrix, or of several, transposed."""
    return grad.transpose(-2, -1)


def broadcast_each(grads: Any, results: Any, *tensors: Any) -> Any:
    """Of tensors that were broadcast together."""
    return (list(grads) if isinstance(tensors[0], Value) else [list(grads)],)
