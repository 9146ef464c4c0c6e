"""Gradients of pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from babytriton.ops.gradients.precision import wide
from babytriton.ops.gradients.windows import averages, shares, sizes_of
from babytriton.ops.parts import part
from babytriton.ops.sizes import each


def avg_pool(rank: int) -> Callable[..., Any]:
    """Of averages over windows: each element's share of all windows that it is in."""

    @wide
    def rule(
        grad: Any,
        result: Any,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        kernels, strides = _steps(kernel_size, stride, rank)
        paddings, counts = each(padding, rank), sizes_of(grad.shape, rank)
        divided = divisor_override is None
        grad = grad if divided else grad / divisor_override
        for i, n in enumerate(sizes_of(input.shape, rank)):
            window = (n, kernels[i], strides[i], paddings[i], counts[i])
            taps = averages(*window, divided, count_include_pad)
            grad = taps.pull(grad, input.ndim - rank + i)
        return grad.expand(input.shape)

    return rule


def _steps(kernel_size: Any, stride: Any, rank: int) -> tuple[list[int], list[int]]:
    """The sizes of windows, and how far apart they start: without a stride, they do not overlap."""
    kernels = each(kernel_size, rank)
    return kernels, each(stride, rank) if stride or stride == 0 else kernels


def adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    """Of averages over windows that share the elements out."""

    @wide
    def rule(grad: Any, result: Any, input: Any, output_size: Any) -> Any:
        sizes, counts = sizes_of(input.shape, rank), sizes_of(grad.shape, rank)
        for i, (n, count) in enumerate(zip(sizes, counts)):
            grad = shares(n, count).pull(grad, input.ndim - rank + i)
        return grad.expand(input.shape)

    return rule


def largest_of(with_indices: Callable[..., Any]) -> Callable[..., Any]:
    """A maximum by the row that says where it was found, which is where its gradient goes."""

    def derive(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        both = with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
        return both if return_indices else both[0]

    return derive


def largest_of_shares(with_indices: Callable[..., Any]) -> Callable[..., Any]:
    """The same for windows that share the elements out."""

    def derive(input: Any, output_size: Any, return_indices: bool = False) -> Any:
        both = with_indices(input, output_size)
        return both if return_indices else both[0]

    return derive


def max_pool(rank: int) -> Callable[..., Any]:
    """Of maxima over windows and their places: each goes back to its place."""

    @wide
    def rule(
        grads: Any,
        results: Any,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        kernels, strides = _steps(kernel_size, stride, rank)
        windows = [kernels, strides, each(padding, rank), each(dilation, rank)]
        return unpooled(grads[0], results[1], sizes_of(input.shape, rank), list(zip(*windows)))

    return rule


def adaptive_max_pool(rank: int) -> Callable[..., Any]:
    """Of maxima over windows that share the elements out."""

    @wide
    def rule(
        grads: Any, results: Any, input: Any, output_size: Any, return_indices: bool = False
    ) -> Any:
        grad, index = grads[0], results[1]
        sizes, counts = sizes_of(input.shape, rank), sizes_of(grad.shape, rank)
        if all(n % count == 0 for n, count in zip(sizes, counts)):
            lengths = [n // count for n, count in zip(sizes, counts)]
            return unpooled(grad, index, sizes, [(n, n, 0, 1) for n in lengths])
        return _scattered(grad, index, sizes)

    return rule


Window = tuple[int, int, int, int]
"""Size, stride, padding and dilation of the windows along a dimension."""


@part
def unpooled(grad: Any, index: Any, sizes: Sequence[int], windows: Sequence[Window]) -> Any:
    """The sum, at each place, of what windows found there.

    Args:
        grad: what they found.
        index: where, with the places in all dimensions as one.
        sizes: of those dimensions.
        windows: of each, so that a place can ask those that it lies in.
    """
    return _scattered(grad, index, sizes)


def of_unpooled(
    grad: Any, result: Any, given: Any, index: Any, sizes: Sequence[int], windows: Any
) -> Any:
    """Of that: what is at the places."""
    rank = len(sizes)
    return grad.flatten(-rank).gather(-1, index.flatten(-rank)).reshape(given.shape)


def _scattered(grad: Any, index: Any, sizes: Sequence[int]) -> Any:
    rank = len(sizes)
    before = list(grad.shape[:-rank])
    zeros = grad.new_zeros([*before, math.prod(sizes)])
    found = zeros.scatter_add(-1, index.flatten(-rank), grad.flatten(-rank))
    return found.reshape([*before, *sizes])
