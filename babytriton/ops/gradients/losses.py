"""Gradients of losses that are not those of what the losses are made of.

At probabilities of 0 and 1, and far from 0, parts of these losses have none, or cancel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.gradients.precision import is_tensor, wide
from babytriton.ops.loss_reduction import reduction_of


def _of_each(grad: Any, input: Any, how: tuple[Any, Any, str]) -> Any:
    """The gradient of each element's loss, from that of what they are reduced to."""
    return grad / input.numel() if reduction_of(*how) == "mean" else grad


def binary_cross_entropy_of_each(input: Any, target: Any) -> Any:
    """The loss of each element; its logarithms are not less than -100."""
    of_zeros = (target - 1) * torch.log1p(-input).clamp_min(-100.0)
    return of_zeros - target * torch.log(input).clamp_min(-100.0)


@wide
def binary_cross_entropy(
    grad: Any,
    result: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Of ``-target * log(input) - (1 - target) * log(1 - input)``."""
    each = grad = _of_each(grad, input, (size_average, reduce, reduction))
    of_weight = None
    if weight is not None:
        each = grad * weight
        of_weight = grad * binary_cross_entropy_of_each(input, target)
    slope = (input - target) / ((1 - input) * input).clamp_min(1e-12)
    return each * slope, -each * torch.logit(input), of_weight


def binary_cross_entropy_with_logits_of_each(input: Any, target: Any, pos_weight: Any) -> Any:
    """The loss of each element."""
    log_probability = F.logsigmoid(input)
    if pos_weight is not None:
        log_probability = log_probability * ((pos_weight - 1) * target + 1)
    return (1 - target) * input - log_probability


@wide
def binary_cross_entropy_with_logits(
    grad: Any,
    result: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Of the same for the logistic function of ``input``."""
    each = grad = _of_each(grad, input, (size_average, reduce, reduction))
    of_weight = of_pos_weight = None
    if is_tensor(weight):
        each = grad * weight
        of_weight = grad * binary_cross_entropy_with_logits_of_each(input, target, pos_weight)
    ones, rest, of_target = target, 1 - target, -each * input
    if pos_weight is not None:
        log = F.logsigmoid(input)
        ones = pos_weight * target
        of_target = of_target - each * log * (pos_weight - 1)
        of_pos_weight = -each * target * log
    of_input = each * ((ones + rest) * torch.sigmoid(input) - ones)
    return of_input, of_target, of_weight, None, None, None, of_pos_weight
