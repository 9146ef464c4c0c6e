"""Normalization in parts, for gradients: the way back needs the means and the scales.

What is divided by is a part of its own, whose gradient has the sums that the mean and the scale
contribute in it; they are computed once, on the way forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from babytriton.ops import numerics
from babytriton.ops.gradients import standardizing as gradients
from babytriton.ops.moments import deviation, mean_of
from babytriton.ops.parts import part, plain
from babytriton.ops.table import Op

# Rows: the last dimensions together


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """``torch.nn.functional.layer_norm``."""
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, _, scale = _moments(input, dims, eps)
    return by_row(input, mean, scale, weight, bias, dims)


def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    """``torch.nn.functional.rms_norm``."""
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = numerics.opmath(input.dtype)
    squares = torch.square(input.to(wide)).mean(dims, keepdim=True)
    scale = torch.rsqrt(squares + (torch.finfo(wide).eps if eps is None else eps))
    return by_row(input, None, scale, weight, None, dims)


def _moments(x: Any, dims: tuple[int, ...], eps: Any) -> tuple[Any, Any, Any]:
    """The mean, the variance, and the inverse of its root, over dimensions that they keep."""
    mean = mean_of(x, dims)
    variance = deviation(x, mean, dims, 0, True, False, mean.dtype)
    return mean, variance, torch.rsqrt(variance + eps)


@part
def by_row(input: Any, mean: Any, scale: Any, weight: Any, bias: Any, dims: tuple[int, ...]) -> Any:
    """``(input - mean) * scale * weight + bias``, in the dtype of the input.

    Args:
        input: what is normalized.
        mean: of it over the dimensions, which it keeps; 0 if it is ``None``.
        scale: the inverse of the root of its mean square deviation from that.
        weight: to multiply by; it broadcasts to the input.
        bias: to add; likewise.
        dims: that are normalized together.
    """
    found = input.to(scale.dtype)
    found = (found if mean is None else found - mean) * scale
    if weight is not None:
        found = found * weight.to(scale.dtype)
    if bias is not None:
        found = found + bias.to(scale.dtype)
    return found.to(input.dtype)


# Channels: the second dimension apart


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    """``torch.nn.functional.batch_norm``."""
    wide = numerics.opmath(input.dtype)
    if not training:
        shape = gradients.channel_shape(input.ndim)
        mean = running_mean.detach().to(wide).reshape(shape)
        scale = torch.rsqrt(running_var.detach().to(wide) + eps).reshape(shape)
        return by_channel(input, mean, scale, weight, bias, False)
    dims = tuple(dim for dim in range(input.ndim) if dim != 1)
    mean, variance, scale = _moments(input, dims, eps)
    count = input.numel() // input.shape[1]
    update(running_mean, mean.reshape(-1), momentum)
    # The running variance is the unbiased one, and the batch is divided by the other.
    update(running_var, variance.reshape(-1) * (count / (count - 1)), momentum)
    return by_channel(input, mean, scale, weight, bias, True)


def update(running: Any, new: Any, momentum: float) -> None:
    """Let running statistics move to those of a batch, which no gradient flows back to."""
    if running is not None:
        wide = running.to(new.dtype)
        running.copy_(wide * (1 - momentum) + new.detach() * momentum)


@part
def by_channel(input: Any, mean: Any, scale: Any, weight: Any, bias: Any, moving: bool) -> Any:
    """The same with a weight and a bias for each channel.

    Args:
        input: what is normalized.
        mean: of each channel, with all of its dimensions kept.
        scale: likewise.
        weight: to multiply by, of one dimension.
        bias: to add; likewise.
        moving: whether mean and scale are those of the input.
    """
    shape = gradients.channel_shape(input.ndim)
    found = (input.to(scale.dtype) - mean) * scale
    return _with_parameters(found, weight, bias, shape).to(input.dtype)


def _with_parameters(found: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if weight is not None:
        found = found * weight.to(found.dtype).reshape(shape)
    if bias is not None:
        found = found + bias.to(found.dtype).reshape(shape)
    return found


# Groups of channels


def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    """``torch.nn.functional.group_norm``."""
    if num_groups == input.shape[1] and input.ndim > 2:
        dims = tuple(range(2, input.ndim))
        mean, _, scale = _moments(input, dims, eps)
        shape = gradients.channel_shape(input.ndim)
        weight, bias = (None if x is None else x.reshape(shape) for x in (weight, bias))
        return by_row(input, mean, scale, weight, bias, dims)
    rows = rows_of_groups(input, num_groups)
    mean, _, scale = _moments(rows, (2, 3), eps)
    if weight is None and bias is None:
        return by_row(rows, mean, scale, None, None, (2, 3)).reshape(input.shape)
    return by_group(input, mean, scale, weight, bias)


def rows_of_groups(input: Any, groups: int) -> Any:
    """The channels of each group apart, and the elements of each channel as one dimension."""
    batch, channels, *others = input.shape
    return input.reshape(batch, groups, channels // groups, math.prod(others))


@part
def by_group(input: Any, mean: Any, scale: Any, weight: Any, bias: Any) -> Any:
    """The same with a mean and a scale for each group of channels.

    Args:
        input: what is normalized.
        mean: of each group: a row for each element of the batch, with two more dimensions of 1.
        scale: likewise.
        weight: to multiply by, of one dimension.
        bias: to add; likewise.
    """
    # All of it goes along the rows that the mean is of, so that it can be one kernel with that.
    rows = rows_of_groups(input, scale.shape[1])
    found = (rows.to(scale.dtype) - mean) * scale
    found = _with_parameters(found, weight, bias, (1, *rows.shape[1:3], 1))
    return found.to(input.dtype).reshape(input.shape)


PARTS: tuple[Op, ...] = (
    Op("by_row", (by_row,), decompose=plain(by_row), gradient=gradients.by_row),
    Op("by_channel", (by_channel,), decompose=plain(by_channel), gradient=gradients.by_channel),
    Op("by_group", (by_group,), decompose=plain(by_group), gradient=gradients.by_group),
)
