"""Gradients of arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch

from babytriton.ops.gradients.precision import is_tensor, wide


def add(grad: Any, result: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Of ``input + alpha * other``."""
    return grad, grad if type(alpha) is int and alpha == 1 else grad * alpha


def sub(grad: Any, result: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Of ``input - alpha * other``."""
    return grad, -grad if type(alpha) is int and alpha == 1 else -grad * alpha


def rsub(grad: Any, result: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Of ``other - alpha * input``."""
    return -grad if type(alpha) is int and alpha == 1 else -grad * alpha, grad


def mul(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input * other``."""
    return grad * other, grad * input


@wide
def div(grad: Any, result: Any, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Of ``input / other``; a rounded quotient is constant but for steps."""
    if rounding_mode is not None:
        return tuple(torch.zeros_like(x) if is_tensor(x) else None for x in (input, other))
    return grad / other, -grad * (input / other) / other if is_tensor(other) else None


@wide
def remainder(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input - floor(input / other) * other``."""
    if not is_tensor(other):
        return grad
    return grad, -grad * torch.floor(input / other)


@wide
def fmod(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input - trunc(input / other) * other``."""
    if not is_tensor(other):
        return grad
    return grad, -grad * torch.trunc(input / other)


@wide
def pow(grad: Any, result: Any, input: Any, exponent: Any) -> Any:
    """Of ``input ** exponent``; where either limit of 0 to some power counts, as torch takes it."""
    of_input = of_exponent = None
    if is_tensor(input):
        of_input = _of_base(grad, input, exponent)
    if is_tensor(exponent):
        if is_tensor(input):
            vanishes = (input == 0) & (exponent >= 0)
            log = torch.log(torch.where(vanishes, torch.ones_like(input), input))
            of_exponent = torch.where(vanishes, 0.0, grad * result * log)
        elif input == 0:
            of_exponent = torch.where(exponent >= 0, 0.0, grad * result * -math.inf)
        else:
            of_exponent = grad * (result * math.log(input) if input > 0 else result * math.nan)
    return of_input, of_exponent


def _of_base(grad: Any, input: Any, exponent: Any) -> Any:
    if type(exponent) in (int, float):
        if exponent == 0:
            return torch.zeros_like(input)
        if exponent == 1:
            return grad
        return grad * (input * exponent if exponent == 2 else exponent * input ** (exponent - 1))
    slope = exponent * torch.pow(input, exponent - 1)
    return torch.where(exponent == 0, 0.0, grad * slope) if is_tensor(exponent) else grad * slope


def neg(grad: Any, result: Any, input: Any) -> Any:
    """Of ``-input``."""
    return -grad


def same(grad: Any, result: Any, input: Any, *_: Any, **__: Any) -> Any:
    """Of what passes on its first argument."""
    return grad


def abs(grad: Any, result: Any, input: Any) -> Any:
    """Of the absolute value; 0 at 0."""
    return grad * torch.sign(input)


@wide
def reciprocal(grad: Any, result: Any, input: Any) -> Any:
    """Of ``1 / input``."""
    return -grad * result * result


def square(grad: Any, result: Any, input: Any) -> Any:
    """Of ``input * input``."""
    return grad * (input * 2)


@wide
def copysign(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the absolute value of ``input`` with the sign of ``other``."""
    return torch.where(input == 0, 0.0, grad * (result / input))


@wide
def lerp(grad: Any, result: Any, input: Any, end: Any, weight: Any) -> Any:
    """Of ``input + weight * (end - input)``."""
    return grad * (1 - weight), grad * weight, grad * (end - input)


@wide
def addcmul(
    grad: Any, result: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1
) -> Any:
    """Of ``input + value * tensor1 * tensor2``."""
    return grad, grad * (tensor2 * value), grad * (tensor1 * value)


@wide
def addcdiv(
    grad: Any, result: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1
) -> Any:
    """Of ``input + value * tensor1 / tensor2``."""
    return grad, grad * (value / tensor2), -grad * (value * tensor1 / (tensor2 * tensor2))


def clamp(grad: Any, result: Any, input: Any, min: Any = None, max: Any = None) -> Any:
    """Of the number between two bounds; the number's own at a bound, as for torch."""
    above: Any = None if min is None else input >= min
    below: Any = None if max is None else input <= max
    inside = below if above is None else above if below is None else above & below
    of_min = of_max = None
    if is_tensor(min):
        low = input < min
        of_min = torch.where(low if max is None else low & (min < max), grad, 0.0)
    if is_tensor(max):
        high = input > max
        of_max = torch.where(high if min is None else high | (max < min), grad, 0.0)
    return torch.where(inside, grad, 0.0), of_min, of_max


def clamp_min(grad: Any, result: Any, input: Any, min: Any) -> Any:
    """Of the larger of a number and a bound."""
    of_min = torch.where(input < min, grad, 0.0) if is_tensor(min) else None
    return torch.where(input >= min, grad, 0.0), of_min


def clamp_max(grad: Any, result: Any, input: Any, max: Any) -> Any:
    """Of the smaller of a number and a bound."""
    of_max = torch.where(input > max, grad, 0.0) if is_tensor(max) else None
    return torch.where(input <= max, grad, 0.0), of_max


def maximum(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the larger one; both get half of it where they are equal."""
    return _chosen(grad, input, other, input > other, other > input)


def minimum(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the smaller one; both get half of it where they are equal."""
    return _chosen(grad, input, other, input < other, other < input)


def _chosen(grad: Any, input: Any, other: Any, first: Any, second: Any) -> Any:
    half = torch.where(input == other, grad / 2, grad)
    return torch.where(second, 0.0, half), torch.where(first, 0.0, half)


def fmax(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the larger one, of which NaN is none; ``input`` gets it where they are equal."""
    first = (input >= other) | torch.isnan(other)
    return torch.where(first, grad, 0.0), torch.where(first, 0.0, grad)


def fmin(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of the smaller one, of which NaN is none; ``input`` gets it where they are equal."""
    first = (input <= other) | torch.isnan(other)
    return torch.where(first, grad, 0.0), torch.where(first, 0.0, grad)


def where(grad: Any, result: Any, condition: Any, input: Any, other: Any) -> Any:
    """Of the one that the condition chooses."""
    return None, torch.where(condition, grad, 0.0), torch.where(condition, 0.0, grad)


def where_method(grad: Any, result: Any, input: Any, condition: Any, other: Any) -> Any:
    """The same for a method of what is chosen where the condition holds."""
    return torch.where(condition, grad, 0.0), None, torch.where(condition, 0.0, grad)


def masked_fill(grad: Any, result: Any, input: Any, mask: Any, value: Any) -> Any:
    """Of ``input``, or of ``value`` where the mask holds."""
    of_value = torch.where(mask, grad, 0.0) if is_tensor(value) else None
    return torch.where(mask, 0.0, grad), None, of_value


def nan_to_num(grad: Any, result: Any, input: Any, *_: Any, **__: Any) -> Any:
    """Of the numbers that stay; those that are replaced are constants."""
    return torch.where(torch.isfinite(input), grad, 0.0)


@wide
def ldexp(grad: Any, result: Any, input: Any, other: Any) -> Any:
    """Of ``input * 2 ** other``."""
    return grad * torch.pow(2.0, other), grad * (result * math.log(2))


def zero(grad: Any, result: Any, *inputs: Any, **_: Any) -> Any:
    """Of what is constant but for steps."""
    return ([torch.zeros_like(x) if is_tensor(x) else None for x in inputs],)
