"""Gradients of what a class's index chooses."""

from __future__ import annotations

from typing import Any

import torch


def is_class(target: Any, classes: Any, dim: int) -> Any:
    """Whether each class is the target's, along a dimension of its own."""
    # 32 bits: twice as many fit in a vector.
    numbers = target.emitter.call(torch.arange, (classes,), {"dtype": torch.int32})
    return numbers.reshape(-1, *(1 for _ in target.shape[dim:])) == target.int().unsqueeze(dim)


def of_class(
    grad: Any, result: Any, input: Any, target: Any, dim: int, ignored: int | None = None
) -> Any:
    """Of each target's number: elementwise, which fuses with what else the classes get."""
    if ignored is not None:
        grad = torch.where(target == ignored, 0.0, grad)
    chosen = is_class(target, input.shape[dim], dim)
    return torch.where(chosen, grad.unsqueeze(dim), 0.0)
