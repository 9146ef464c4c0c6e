"""Gradients of functions of one or two numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from babytriton.ops.gradients.precision import is_tensor, wide


@wide
def sqrt(grad: Any, result: Any, input: Any) -> Any:
    return grad / (2 * result)


@wide
def rsqrt(grad: Any, result: Any, input: Any) -> Any:
    return grad * (result * result * result * -0.5)


def exp(grad: Any, result: Any, input: Any) -> Any:
    return grad * result


@wide
def exp2(grad: Any, result: Any, input: Any) -> Any:
    return grad * (result * math.log(2))


@wide
def expm1(grad: Any, result: Any, input: Any) -> Any:
    return grad * (result + 1)


def log(grad: Any, result: Any, input: Any) -> Any:
    return grad / input


@wide
def log2(grad: Any, result: Any, input: Any) -> Any:
    return grad / (input * math.log(2))


@wide
def log10(grad: Any, result: Any, input: Any) -> Any:
    return grad / (input * math.log(10))


@wide
def log1p(grad: Any, result: Any, input: Any) -> Any:
    return grad / (input + 1)


@wide
def sin(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.cos(input)


@wide
def cos(grad: Any, result: Any, input: Any) -> Any:
    return -grad * torch.sin(input)


@wide
def tan(grad: Any, result: Any, input: Any) -> Any:
    return grad * (1 + result * result)


@wide
def asin(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.rsqrt(1 - input * input)


@wide
def acos(grad: Any, result: Any, input: Any) -> Any:
    return -grad * torch.rsqrt(1 - input * input)


@wide
def atan(grad: Any, result: Any, input: Any) -> Any:
    return grad / (input * input + 1)


@wide
def atan2(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the angle of the point ``(other, input)``; 0 where that has none, as torch's."""
    squared = input * input + other * other
    slope = torch.where(squared == 0, 0.0, grad / squared)
    return slope * other, -slope * input


@wide
def sinh(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.cosh(input)


@wide
def cosh(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.sinh(input)


@wide
def tanh(grad: Any, result: Any, input: Any) -> Any:
    return grad * (1 - result * result)


@wide
def asinh(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.rsqrt(input * input + 1)


@wide
def acosh(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.rsqrt(input * input - 1)


@wide
def atanh(grad: Any, result: Any, input: Any) -> Any:
    return grad / (1 - input * input)


@wide
def erf(grad: Any, result: Any, input: Any) -> Any:
    return grad * (torch.exp(-input * input) * (2 / math.sqrt(math.pi)))


@wide
def erfc(grad: Any, result: Any, input: Any) -> Any:
    return grad * (torch.exp(-input * input) * (-2 / math.sqrt(math.pi)))


@wide
def lgamma(grad: Any, result: Any, input: Any) -> Any:
    return grad * torch.digamma(input)


@wide
def sigmoid(grad: Any, result: Any, input: Any) -> Any:
    return grad * (result * (1 - result))


@wide
def logit(grad: Any, result: Any, input: Any, eps: float | None = None) -> Any:
    """Of ``log(input / (1 - input))``; where ``eps`` bounds the input, 0."""
    slope = grad / (input * (1 - input))
    if eps is None:
        return torch.where((input >= 0) & (input <= 1), slope, math.nan)
    return torch.where((input >= eps) & (input <= 1 - eps), slope, 0.0)


@wide
def xlogy(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input * log(other)``, which is 0 where ``input`` is."""
    log = torch.log(other) if is_tensor(other) else _log(other)
    vanishes = (input == 0) & (other <= 0) if is_tensor(input) else None
    of_input = None if vanishes is None else grad * torch.where(vanishes, 0.0, log)
    return of_input, grad * input / other if is_tensor(other) else None


@wide
def xlog1py(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input * log1p(other)``, which is 0 where ``input`` is."""
    log = torch.log1p(other) if is_tensor(other) else _log(other + 1)
    vanishes = (input == 0) & (other <= -1) if is_tensor(input) else None
    of_input = None if vanishes is None else grad * torch.where(vanishes, 0.0, log)
    return of_input, grad * input / (other + 1) if is_tensor(other) else None


def _log(number: Any) -> float:
    if number > 0:
        return math.log(number)
    return -math.inf if number == 0 else math.nan


@wide
def logaddexp(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``log(exp(input) + exp(other))``."""
    return grad / (1 + torch.exp(other - input)), grad / (1 + torch.exp(input - other))


@wide
def logaddexp2(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``log2(2 ** input + 2 ** other)``."""
    return grad / (1 + torch.exp2(other - input)), grad / (1 + torch.exp2(input - other))


@wide
def hypot(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the length of the vector ``(input, other)``."""
    return grad * (input / result), grad * (other / result)


@wide
def sinc(grad: Any, result: Any, input: Any) -> Any:
    """Of ``sin(pi x) / (pi x)``, which is flat at 0."""
    turned = input * math.pi
    slope = (turned * torch.cos(turned) - torch.sin(turned)) / (turned * input)
    return grad * torch.where(turned * input == 0, 0.0, slope)


def deg2rad(grad: Any, result: Any, input: Any) -> Any:
    return grad * (math.pi / 180)


def rad2deg(grad: Any, result: Any, input: Any) -> Any:
    return grad * (180 / math.pi)
