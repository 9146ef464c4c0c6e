"""Gradients of means and variances."""

from __future__ import annotations

import math
from typing import Any

import torch

from babytriton.ops.gradients.reductions import spread


def mean_of(grad: Any, result: Any, input: Any, dims: tuple[int, ...]) -> Any:
    """Of a mean whose dimensions are kept."""
    return (grad / math.prod(input.shape[d] for d in dims)).expand(input.shape)


def deviation(
    grad: Any,
    result: Any,
    input: Any,
    mean: Any,
    dims: tuple[int, ...],
    correction: float,
    keepdim: bool,
    root: bool,
    dtype: torch.dtype,
) -> Any:
    """Of a variance, or its root, about a mean that moves with the numbers but does not count.

    Where the numbers are all equal the gradient of the root is 0, as for torch.
    """
    grad, result = grad.to(mean.dtype), result.to(mean.dtype)
    slope = torch.where(result == 0, 0.0, grad / result) if root else grad * 2
    slope = slope / divisor(input, dims, correction)
    return spread(slope, input, dims, keepdim) * (input.to(mean.dtype) - mean), None


def divisor(input: Any, dims: tuple[int, ...], correction: float) -> Any:
    """What the sum of squared deviations is divided by for the variance."""
    return torch.sym_max(math.prod(input.shape[d] for d in dims) - correction, 0)
