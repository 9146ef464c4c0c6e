"""Gradients of activation functions, at their kinks what torch takes them to be."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.gradients.precision import wide


def relu(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of the positive part."""
    return torch.where(result <= 0, 0.0, grad)


def hardtanh(
    grad: Any,
    result: Any,
    input: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Any:
    """Of the number between two bounds; 0 at a bound."""
    return torch.where((result <= min_val) | (result >= max_val), 0.0, grad)


def relu6(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of the number between 0 and 6."""
    return hardtanh(grad, result, input, 0, 6)


def leaky_relu(
    grad: Any, result: Any, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Any:
    """Of the number, or a part of it where it is not positive."""
    return torch.where(input > 0, grad, grad * negative_slope)


@wide
def prelu(grad: Any, result: Any, input: Any, weight: Any) -> Any:
    """The same for parts that are given, of all numbers or of those of each channel."""
    positive = input > 0
    of_weight = torch.where(positive, 0.0, grad * input)
    slopes = weight
    if input.ndim == 0:
        slopes, of_weight = weight.reshape(()), of_weight.reshape(weight.shape)
    elif weight.numel() != 1:
        slopes = weight.reshape(-1, *(1 for _ in input.shape[2:]))
        of_weight = of_weight.sum([d for d in range(input.ndim) if d != 1])
    return torch.where(positive, grad, grad * slopes), of_weight


def _exponential(grad: Any, input: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """Of ``scale`` times the number, or ``alpha * expm1(input_scale * number)`` below 0."""
    # Where it is not wanted the exponential must not overflow: its own gradient would be NaN.
    below = torch.where(input < 0, input, 0.0)
    slope = torch.exp(below * input_scale) * (alpha * scale * input_scale)
    return grad * torch.where(input <= 0, slope, scale)


@wide
def elu(grad: Any, result: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Of the number, or ``alpha * expm1(number)`` below 0."""
    return _exponential(grad, input, alpha, 1.0, 1.0)


SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
"""Its ``alpha`` and its scale."""


@wide
def selu(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """The same, scaled, with constants."""
    return _exponential(grad, input, *SELU, 1.0)


@wide
def celu(grad: Any, result: Any, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Of the number, or ``alpha * expm1(number / alpha)`` below 0."""
    return _exponential(grad, input, alpha, 1.0, 1 / alpha)


@wide
def gelu(grad: Any, result: Any, input: Any, approximate: str = "none") -> Any:
    """Of the number times the normal distribution up to it, or nearly that."""
    if approximate == "none":
        share = (torch.erf(input * math.sqrt(0.5)) + 1) * 0.5
        density = torch.exp(input * input * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (share + input * density)
    factor, cubic = math.sqrt(2 / math.pi), 0.044715
    squared = input * input
    tanh = torch.tanh(input * (squared * (factor * cubic) + factor))
    slope = (squared * (3 * factor * cubic) + factor) * (1 - tanh * tanh)
    return grad * ((tanh + 1 + input * slope) * 0.5)


@wide
def silu(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of the number times its logistic function."""
    share = torch.sigmoid(input)
    return grad * (share * (input * (1 - share) + 1))


@wide
def mish(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of ``input * tanh(softplus(input))``."""
    tanh = torch.tanh(F.softplus(input))
    return grad * (tanh + input * torch.sigmoid(input) * (1 - tanh * tanh))


@wide
def softplus(grad: Any, result: Any, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Of ``log1p(exp(beta * input)) / beta``, or of the number itself above a threshold."""
    scaled = input * beta
    below = torch.where(scaled < threshold, scaled, threshold)
    return torch.where(scaled > threshold, grad, grad * torch.sigmoid(below))


@wide
def logsigmoid(grad: Any, result: Any, input: Any) -> Any:
    """Of the logistic function's logarithm."""
    return grad * torch.sigmoid(-input)


def hardsigmoid(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of ``relu6(input + 3) / 6``."""
    return torch.where((input > -3) & (input < 3), grad * (1 / 6), 0.0)


@wide
def hardswish(grad: Any, result: Any, input: Any, inplace: bool = False) -> Any:
    """Of the number times that."""
    inside = torch.where(input < 3, grad * (input / 3 + 0.5), grad)
    return torch.where(input <= -3, 0.0, inside)


def shrink(grad: Any, result: Any, input: Any, lambd: float = 0.5) -> Any:
    """Of what is 0 near 0: of ``hardshrink`` and of ``softshrink``."""
    return torch.where((input >= -lambd) & (input <= lambd), 0.0, grad)


def threshold(
    grad: Any, result: Any, input: Any, threshold: float, value: float, inplace: bool = False
) -> Any:
    """Of the numbers above a threshold."""
    return torch.where(input <= threshold, 0.0, grad)


@wide
def glu(grad: Any, result: Any, input: Any, dim: int = -1) -> Any:
    """Of one half of a dimension times the logistic function of the other."""
    first, second = torch.chunk(input, 2, dim)
    share = torch.sigmoid(second)
    return torch.cat([grad * share, grad * first * (share * (1 - share))], dim)
