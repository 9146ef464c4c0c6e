"""Gradients of padding, and of windows that slide over a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from babytriton.ops.gradients.positions import padded_in
from babytriton.ops.gradients.precision import wide

_FEW = 4
"""Slices that are added one by one, as part of an elementwise kernel."""


def pad(
    grad: Any,
    result: Any,
    input: Any,
    pad: Sequence[Any],
    mode: str = "constant",
    value: Any = None,
) -> Any:
    """Of a tensor with more around it: what stands for an element in several places adds up."""
    if mode == "constant":
        return constant_pad_nd(grad, result, input, pad)
    return _folded(grad, result, input, pad, mode)


def constant_pad_nd(grad: Any, result: Any, input: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    """Of a tensor with a constant around it."""
    return F.pad(grad, [-n for n in pad])


@wide
def _folded(grad: Any, result: Any, input: Any, pad: Sequence[Any], mode: str) -> Any:
    back = {"reflect": _reflected, "replicate": _clamped, "circular": _wrapped}[mode]
    for i in range(len(pad) // 2):
        before, after = pad[2 * i], pad[2 * i + 1]
        if before or after:
            dim = input.ndim - 1 - i
            grad = back(grad, dim, before, after, input.shape[dim])
    return grad


def _reflected(grad: Any, dim: int, before: int, after: int, n: Any) -> Any:
    found = padded_in(grad, dim, -before, -after)
    if before > 0:
        mirrored = grad.narrow(dim, 0, before).flip(dim)
        found = found + padded_in(mirrored, dim, 1, n - 1 - before)
    if after > 0:
        mirrored = grad.narrow(dim, before + n, after).flip(dim)
        found = found + padded_in(mirrored, dim, n - 1 - after, 1)
    return found


def _clamped(grad: Any, dim: int, before: int, after: int, n: Any) -> Any:
    found = padded_in(grad, dim, -before, -after)
    if before > 0:
        found = found + padded_in(_total(grad, dim, 0, before), dim, 0, n - 1)
    if after > 0:
        found = found + padded_in(_total(grad, dim, before + n, after), dim, n - 1, 0)
    return found


def _total(grad: Any, dim: int, start: Any, length: int) -> Any:
    """The sum of slices that follow each other, as one slice."""
    if length > _FEW:
        return grad.narrow(dim, start, length).sum(dim, keepdim=True)
    first, *others = (grad.narrow(dim, start + i, 1) for i in range(length))
    for other in others:
        first = first + other
    return first


def _wrapped(grad: Any, dim: int, before: int, after: int, n: Any) -> Any:
    """Around what negative padding on either side has left."""
    start, stop = max(-before, 0), n - max(-after, 0)
    before, after, length = max(before, 0), max(after, 0), stop - start
    found = padded_in(grad, dim, -before, -after)
    if before > 0:
        found = found + padded_in(grad.narrow(dim, 0, before), dim, length - before, 0)
    if after > 0:
        end = grad.narrow(dim, before + length, after)
        found = found + padded_in(end, dim, 0, length - after)
    return padded_in(found, dim, start, n - stop)


@wide
def windows(grad: Any, result: Any, input: Any, dimension: int, size: int, step: int) -> Any:
    """Of the windows along a dimension, whose elements are a new last one."""
    if input.ndim == 0:
        return grad.reshape(())
    dim = dimension % input.ndim
    n, count = input.shape[dim], grad.shape[dim]
    before, after = input.shape[:dim], input.shape[dim + 1 :]
    if step >= size:
        # No two windows have an element in common.
        apart = padded_in(grad, grad.ndim - 1, 0, step - size).movedim(-1, dim + 1)
        row = apart.reshape([*before, count * step, *after])
        return padded_in(row, dim, 0, n - count * step)
    rest = _product(after)
    columns = grad.movedim(-1, dim).reshape([_product(before), size, count * rest])
    folded = F.fold(columns, (n, rest), (size, 1), stride=(step, 1))
    return folded.reshape(input.shape)


def _product(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for n in sizes:
        total = total * n
    return total


def im2col(
    grad: Any,
    result: Any,
    input: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Of the windows of an image, each as a column."""
    return F.fold(grad, tuple(input.shape[-2:]), kernel_size, dilation, padding, stride)


def col2im(
    grad: Any,
    result: Any,
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """Of an image that is the sum of the windows on it."""
    return F.unfold(grad, kernel_size, dilation, padding, stride)
