"""Gradients of numbers that are normalized, whose mean and scale move with them.

The mean and the scale themselves get none: what they contribute is part of the input's gradient.
What is cheap is written anew at each use, as what two kernels read is a tensor in memory.
"""

from __future__ import annotations

import math
from typing import Any


def by_row(
    grad: Any,
    result: Any,
    input: Any,
    mean: Any,
    scale: Any,
    weight: Any,
    bias: Any,
    dims: tuple[int, ...],
) -> Any:
    """Of ``(input - mean) * scale * weight + bias``, with a mean and a scale for each row."""
    dtype = scale.dtype
    count = math.prod(input.shape[d] for d in dims)

    def centred() -> Any:
        return input.to(dtype) if mean is None else input.to(dtype) - mean

    weighted = grad.to(dtype) if weight is None else grad.to(dtype) * weight.to(dtype)
    product = (weighted * centred()).sum(dims, keepdim=True) * scale
    found = weighted * scale - centred() * (scale * scale * (product / count))
    if mean is not None:
        found = found - scale * (weighted.sum(dims, keepdim=True) / count)
    of_weight = None if weight is None else grad.to(dtype) * (centred() * scale)
    return found, None, None, of_weight, None if bias is None else grad


def by_channel(
    grad: Any, result: Any, input: Any, mean: Any, scale: Any, weight: Any, bias: Any, moving: bool
) -> Any:
    """Of the same with a mean and a scale for each channel.

    Sums keep no dimension, so that those for the weight and the bias are of their shape.
    """
    dtype = scale.dtype
    shape = channel_shape(input.ndim)
    dims = [d for d in range(input.ndim) if d != 1]
    slope = scale if weight is None else scale * weight.to(dtype).reshape(shape)
    found = grad.to(dtype) * slope
    of_weight = of_bias = None
    if moving or weight is not None:
        of_weight = (grad.to(dtype) * (input.to(dtype) - mean)).sum(dims) * scale.reshape(-1)
    if moving or bias is not None:
        of_bias = grad.to(dtype).sum(dims)
    if moving:
        count = input.numel() // input.shape[1]
        bend = slope * scale * (of_weight / count).reshape(shape)
        found = found - (input.to(dtype) - mean) * bend - slope * (of_bias / count).reshape(shape)
    return (
        found,
        None,
        None,
        None if weight is None else of_weight,
        None if bias is None else of_bias,
    )


def by_group(
    grad: Any, result: Any, input: Any, mean: Any, scale: Any, weight: Any, bias: Any
) -> Any:
    """Of the same with a mean and a scale for each group of channels.

    Sums over each channel come first, as in torch's kernels: the rest is of these.
    """
    dtype = scale.dtype
    batch, groups = scale.shape[:2]
    channels = input.shape[1]
    dims = list(range(2, input.ndim))
    count = input.numel() // (batch * groups)

    def deviations() -> Any:
        return input.to(dtype) - each_channel(mean, input)

    def summed(x: Any) -> Any:
        return x.sum(dims) if dims else x

    def in_group(x: Any) -> Any:
        """The mean of what each channel has, over the channels of a group."""
        if weight is not None:
            x = x * weight.to(dtype)
        of_channels = x.reshape(batch, groups, channels // groups, 1)
        return of_channels.sum(2, keepdim=True) / count

    along = summed(grad.to(dtype))
    product = summed(grad.to(dtype) * deviations())
    slope = each_channel(scale, input)
    if weight is not None:
        slope = slope * weight.to(dtype).reshape(channel_shape(input.ndim))
    bend = each_channel(scale * scale * scale * in_group(product), input)
    found = grad.to(dtype) * slope - deviations() * bend
    found = found - each_channel(scale * in_group(along), input)
    of_weight = of_bias = None
    if weight is not None:
        rows = scale.expand(batch, groups, channels // groups, 1).reshape(batch, channels)
        of_weight = (product * rows).sum(0)
    if bias is not None:
        of_bias = along.sum(0)
    return found, None, None, of_weight, of_bias


def channel_shape(ndim: int) -> tuple[int, ...]:
    """What a number for each channel is reshaped to, to broadcast."""
    return (1, -1) + (1,) * (ndim - 2)


def each_channel(x: Any, input: Any) -> Any:
    """What each group has, for each of its channels, to broadcast."""
    batch, channels = input.shape[:2]
    wide = x.expand(batch, x.shape[1], channels // x.shape[1], 1)
    return wide.reshape(batch, channels, *[1] * (input.ndim - 2))
