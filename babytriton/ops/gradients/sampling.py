"""The gradient of samples at the places of a grid, as that of torch's ``GridSampler``."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.ops.gradients.precision import wide
from babytriton.ops.refusals import Unsupported


@dataclass(frozen=True)
class Tap:
    """One of the elements along a dimension that samples are made of.

    Attributes:
        index: safe to read.
        weight: in the sample.
        sign: of how its weight grows with the coordinate.
        inside: whether it is of the input.
    """

    index: Any
    weight: Any
    sign: int
    inside: Any

    @classmethod
    def at(cls, place: Any, weight: Any, sign: int, size: Any) -> Tap:
        """The element at a place that is counted in floats."""
        # NaN and what is too large for an index are outside.
        inside = (place >= 0) & (place <= size - 1)
        return cls(torch.where(inside, place, 0.0).to(torch.int64), weight, sign, inside)


@wide
def grid_sample(
    grad: Any,
    result: Any,
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """Of an image or a volume, and of the places that it was read at."""
    if mode == "bicubic":
        raise Unsupported("bicubic samples at a grid")
    batch, channels, *sizes = input.shape
    rank, count = len(sizes), math.prod(grid.shape[1:-1])
    given, places = grad.reshape([batch, channels, count]), grid.reshape([batch, count, rank])
    slopes, dims = [], []
    for d, size in enumerate(sizes):
        # The grid names the last dimension first.
        at, slope = _coordinate(
            places.select(-1, rank - 1 - d), size, padding_mode, bool(align_corners)
        )
        slopes.append(slope)
        dims.append(_taps(at, size, mode))
    every = list(itertools.product(*dims))
    inside = [functools.reduce(operator.and_, (tap.inside for tap in taps)) for taps in every]
    index = torch.stack([_flat(taps, sizes) for taps in every], 1)
    index = index.reshape([batch, 1, len(every) * count]).expand(batch, channels, -1)
    weight = torch.stack([torch.where(x, _product(taps), 0.0) for x, taps in zip(inside, every)], 1)
    written = given.unsqueeze(2) * weight.unsqueeze(1)
    zeros = torch.zeros_like(input).flatten(2)
    of_input = zeros.scatter_add(2, index, written.flatten(2)).reshape(input.shape)
    if mode == "nearest":
        return of_input, torch.zeros_like(grid)
    read = input.flatten(2).gather(2, index).reshape([batch, channels, len(every), count])
    each = (read * given.unsqueeze(2)).sum(1).unbind(1)
    each = [torch.where(x, value, 0.0) for x, value in zip(inside, each)]
    found = []
    for d in reversed(range(rank)):
        total: Any = 0
        for taps, value in zip(every, each):
            term = value * _product((*taps[:d], *taps[d + 1 :]))
            total = total + term if taps[d].sign > 0 else total - term
        found.append(total * slopes[d])
    return of_input, torch.stack(found, -1).reshape(grid.shape)


def _flat(taps: tuple[Tap, ...], sizes: list[Any]) -> Any:
    """The index into all dimensions as one."""
    found: Any = 0
    for tap, size in zip(taps, sizes):
        found = found * size + tap.index
    return found


def _product(taps: tuple[Tap, ...]) -> Any:
    return functools.reduce(operator.mul, (tap.weight for tap in taps))


def _coordinate(given: Any, size: Any, padding_mode: str, align_corners: bool) -> tuple[Any, Any]:
    """A coordinate of the grid, counted in elements, moved inside if padding asks for it.

    Returns:
        The coordinate and its slope, which is 0 where the coordinate stops at an edge.
    """
    at = (given + 1) / 2 * (size - 1) if align_corners else ((given + 1) * size - 1) / 2
    slope: Any = (size - 1) / 2 if align_corners else size / 2
    if padding_mode == "zeros":
        return at, slope
    if padding_mode == "reflection":
        at, turned = _reflected(at, size, align_corners)
        slope = torch.where(turned, -slope, slope)
    moved = torch.where(at > 0, torch.where(at < size - 1, at, size - 1.0), 0.0)
    return moved, torch.where((at > 0) & (at < size - 1), slope, 0.0)


def _reflected(at: Any, size: Any, align_corners: bool) -> tuple[Any, Any]:
    """A coordinate between two mirrors, and whether it runs backwards there."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return torch.zeros_like(at), torch.zeros_like(at, dtype=torch.bool)
    before = at < low
    distance = torch.where(before, low - at, at - low)
    extra = torch.fmod(distance, span)
    odd = torch.fmod(torch.floor(distance / span), 2) > 0.5
    return torch.where(odd, span - extra, extra) + low, before ^ odd


def _taps(at: Any, size: Any, mode: str) -> list[Tap]:
    """The elements that a sample is made of along a dimension."""
    if mode == "nearest":
        return [Tap.at(torch.round(at), torch.ones_like(at), 1, size)]
    first = torch.floor(at)
    rest = at - first
    return [Tap.at(first, 1 - rest, -1, size), Tap.at(first + 1, rest, 1, size)]
