"""Gradients of resampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from babytriton.ops.gradients.precision import wide
from babytriton.ops.gradients.windows import Taps, shares, sizes_of
from babytriton.ops.refusals import Unsupported


@wide
def interpolate(
    grad: Any,
    result: Any,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Of a grid in another size: one dimension after the other."""
    if antialias:
        raise Unsupported("antialias")
    rank = input.ndim - 2
    factors: list[float | None] = [None] * rank
    if scale_factor is not None and not recompute_scale_factor:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * rank
        factors = [float(factor) for factor in given]
    # Coordinates are rounded as on the way forward, which decides what the nearest one is.
    number = np.float64 if grad.dtype == torch.float64 else np.float32
    sizes, outs = sizes_of(input.shape, rank), sizes_of(grad.shape, rank)
    for i, (n, out, factor) in enumerate(zip(sizes, outs, factors)):
        if mode == "area":
            taps = shares(n, out)
        elif mode.startswith("nearest"):
            taps = _nearest(n, out, _step(n, out, factor), 0.5 if "exact" in mode else 0.0, number)
        else:
            at = _coordinates(n, out, factor, bool(align_corners), number)
            taps = _cubic(n, at) if mode == "bicubic" else _linear(n, at)
        grad = taps.pull(grad, i + 2)
    return grad.expand(input.shape)


def _step(size: int, out: int, factor: float | None) -> float:
    return 1.0 / factor if factor is not None and factor > 0 else size / out


def _coordinates(
    size: int, out: int, factor: float | None, align_corners: bool, number: Any
) -> Any:
    """Where the elements of the result lie in the input; below 0 before its first one."""
    places = np.arange(out).astype(number)
    if align_corners:
        return places * number((size - 1) / (out - 1) if out > 1 else 0.0)
    if size == out and factor is None:
        return places
    return (places + number(0.5)) * number(_step(size, out, factor)) - number(0.5)


def _nearest(size: int, out: int, step: float, shift: float, number: Any) -> Taps:
    """The element that each place falls into."""
    at = np.floor((np.arange(out).astype(number) + number(shift)) * number(step))
    return Taps(size, np.minimum(at, size - 1).astype(np.int64)[:, None], np.ones((out, 1)))


def _linear(size: int, at: np.ndarray) -> Taps:
    """The two elements around each place."""
    if size == len(at):
        at = np.arange(size)
    at = np.maximum(at, 0)
    first = np.minimum(np.floor(at), size - 1)
    rest = np.clip(at - first, 0, 1)
    places = np.stack([first, np.minimum(first + 1, size - 1)], axis=1)
    return Taps(size, places.astype(np.int64), np.stack([1 - rest, rest], axis=1))


def _cubic(size: int, at: np.ndarray) -> Taps:
    """The four elements around each place, with the edge repeated outside."""
    first = np.floor(at)
    distance = np.abs((at - first)[:, None] - np.arange(-1, 3))
    places = np.clip(first[:, None] + np.arange(-1, 3), 0, size - 1)
    return Taps(size, places.astype(np.int64), _kernel(distance))


def _kernel(x: Any) -> Any:
    """Keys' kernel with torch's A of -0.75, of distances up to 2."""
    a = -0.75
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far)
