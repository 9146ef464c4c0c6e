"""Gradients of softmax."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.axes import softmax_dim
from babytriton.ops.gradients.precision import wide


@wide
def softmax(grad: Any, result: Any, input: Any, dim: int | None = None, *_: Any, **__: Any) -> Any:
    """Of the exponentials over their sum."""
    total = (grad * result).sum(softmax_dim(dim, input.ndim), keepdim=True)
    return (grad - total) * result


@wide
def log_softmax(
    grad: Any, result: Any, input: Any, dim: int | None = None, *_: Any, **__: Any
) -> Any:
    """Of the numbers less the logarithm of the sum of their exponentials."""
    total = grad.sum(softmax_dim(dim, input.ndim), keepdim=True)
    return grad - torch.exp(result) * total


def softmin(
    grad: Any, result: Any, input: Any, dim: int | None = None, *rest: Any, **options: Any
) -> Any:
    """Of the softmax of ``-input``."""
    return -softmax(grad, result, input, dim, *rest, **options)
