"""Gradients of softmax, whose maximum and sum move with it.

These themselves get none: what they contribute is part of the input's gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.gradients.precision import wide


@wide
def shares_of_row(
    grad: Any, result: Any, input: Any, exponential: Any, share: Any, dim: int
) -> Any:
    """Of the exponentials over their sum."""
    return (grad - (grad * result).sum(dim, keepdim=True)) * result


@wide
def log_shares_of_row(
    grad: Any, result: Any, input: Any, shifted: Any, log_total: Any, dim: int
) -> Any:
    """Of the numbers less the logarithm of the sum of their exponentials."""
    return grad - torch.exp(result) * grad.sum(dim, keepdim=True)
