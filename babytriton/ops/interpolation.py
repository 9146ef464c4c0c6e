"""Resampling of images and other grids."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tvm import tirx

from babytriton.ops.gradients import interpolation as gradients
from babytriton.ops.gradients.sampling import grid_sample
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

Tap = tuple[Any, Any]
"""An index into one dimension of the input, and its weight; ``None`` is a weight of 1."""

_ADAPTIVE: dict[int, Callable[..., Any]] = {
    3: F.adaptive_avg_pool1d,
    4: F.adaptive_avg_pool2d,
    5: F.adaptive_avg_pool3d,
}


@dataclass(frozen=True)
class Resize:
    """How one dimension is resized.

    Attributes:
        size: of the input.
        out: the result's size.
        factor: the user's scale factor, if that is to be used and not the sizes' ratio.
        align_corners: whether the first and the last elements stay where they are.
        dtype: that coordinates are computed in, as in torch.
    """

    size: int
    out: int
    factor: float | None
    align_corners: bool
    dtype: str

    @property
    def scale(self) -> float:
        """The step in the input for one step in the result."""
        if self.align_corners:
            return (self.size - 1) / (self.out - 1) if self.out > 1 else 0.0
        if self.factor is not None and self.factor > 0:
            return 1.0 / self.factor
        return self.size / self.out

    def number(self, value: float) -> Any:
        """A constant among the coordinates."""
        return tirx.const(value, self.dtype)

    def coordinate(self, place: Any) -> Any:
        """Where an element of the result lies in the input; below 0 before its first one."""
        step = self.number(self.scale)
        if self.align_corners:
            return place.astype(self.dtype) * step
        half = self.number(0.5)
        return (place.astype(self.dtype) + half) * step - half

    def nearest(self, place: Any, shift: float) -> list[Tap]:
        """The element that a place falls into; ``shift`` is where in itself a place is measured."""
        float_type = np.dtype(self.dtype).type
        places = np.arange(self.out)
        exact = (places.astype(self.dtype) + float_type(shift)) * float_type(self.scale)
        found = np.minimum(np.floor(exact), self.size - 1)
        if shift == 0 and bool((found == places * self.size // self.out).all()):
            # Whole numbers, where no rounding of the scale shows in any place.
            return [(tirx.floordiv(place * int64(self.size), int64(self.out)), None)]
        at = (place.astype(self.dtype) + self.number(shift)) * self.number(self.scale)
        index = tirx.floor(at).astype("int64")
        return [(tirx.min(index, int64(self.size - 1)), None)]

    def linear(self, place: Any) -> list[Tap]:
        """The two elements around a place."""
        if self.size == self.out:
            return [(place, None)]
        at = tirx.max(self.coordinate(place), self.number(0))
        first = tirx.min(tirx.floor(at).astype("int64"), int64(self.size - 1))
        second = tirx.min(first + int64(1), int64(self.size - 1))
        one, rest = self.number(1), at - first.astype(self.dtype)
        rest = tirx.min(tirx.max(rest, self.number(0)), one)
        return [(first, one - rest), (second, rest)]

    def cubic(self, place: Any) -> list[Tap]:
        """The four elements around a place, with the edge repeated outside."""
        at = self.coordinate(place)
        floor = tirx.floor(at)
        first = floor.astype("int64")
        taps = []
        for i, weight in enumerate(_cubic_weights(at - floor, self.number)):
            index = tirx.min(first + int64(i - 1), int64(self.size - 1))
            taps.append((tirx.max(index, int64(0)), weight))
        return taps


def _cubic_weights(t: Any, number: Callable[[float], Any]) -> list[Any]:
    """Keys' kernel with torch's A of -0.75, for the elements at -1, 0, 1 and 2 around ``t``."""
    a = -0.75
    one = number(1)

    def near(x: Any) -> Any:
        return ((number(a + 2) * x - number(a + 3)) * x) * x + one

    def far(x: Any) -> Any:
        return ((number(a) * x - number(5 * a)) * x + number(8 * a)) * x - number(4 * a)

    return [far(t + one), near(t), near(one - t), far(number(2) - t)]


_TAPS: dict[str, Callable[[Resize, Any], list[Tap]]] = {
    "nearest": functools.partial(Resize.nearest, shift=0.0),
    "nearest-exact": functools.partial(Resize.nearest, shift=0.5),
    "linear": Resize.linear,
    "bilinear": Resize.linear,
    "trilinear": Resize.linear,
    "bicubic": Resize.cubic,
}


def _interpolate(
    site: Site,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The sizes are torch's own, from the shape of its result."""
    if antialias:
        raise Unsupported("antialias")
    if mode == "area":
        return _ADAPTIVE[input.meta.ndim](input, site.shape[2:])
    whole = not site.dtype.is_floating_point
    if whole and (site.dtype != torch.uint8 or not mode.startswith("nearest")):
        raise Unsupported("an interpolation of integers")
    rank = input.meta.ndim - 2
    factors: Sequence[float | None] = [None] * rank
    if scale_factor is not None and not recompute_scale_factor:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * rank
        factors = [float(factor) for factor in given]
    dtype = dtype_of(torch.float32 if whole else opmath(site.dtype)).name
    resizes = [
        Resize(n, out, factor, bool(align_corners), dtype)
        for n, out, factor in zip(input.meta.shape[2:], site.shape[2:], factors)
    ]

    def body(tensors: Any, *place: Any) -> Any:
        batch, inside = place[:2], place[2:]
        taps = [_TAPS[mode](resize, p) for resize, p in zip(resizes, inside)]

        def total(index: tuple[Any, ...]) -> Any:
            """The weighted sum over the dimensions that the index still lacks."""
            if len(index) == rank:
                value = tensors[0](*batch, *index)
                return value if mode.startswith("nearest") else value.astype(dtype)
            terms = [
                total((*index, i)) if weight is None else total((*index, i)) * weight
                for i, weight in taps[len(index)]
            ]
            return functools.reduce(lambda x, y: x + y, terms)

        return total(()).astype(dtype_of(site.dtype).name)

    return site.compute(f"interpolate_{mode.replace('-', '_')}", site.shape, body, input.expr)


def _upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    return F.interpolate(input, size, scale_factor, mode, align_corners)


def _upsample_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    return F.interpolate(input, size, scale_factor, mode="nearest")


def _upsample_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    return F.interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


# ---------------------------------------------------------------- at places of a grid


@dataclass(frozen=True)
class Sampled:
    """How one dimension of the input is read at coordinates between -1 and 1.

    Attributes:
        size: of the input.
        rank: how many such dimensions there are.
        padding_mode, align_corners: as torch's.
        dtype: that coordinates are computed in.
    """

    size: int
    rank: int
    padding_mode: str
    align_corners: bool
    dtype: str

    def number(self, value: float) -> Any:
        """A constant among the coordinates."""
        return tirx.const(value, self.dtype)

    def coordinate(self, given: Any) -> Any:
        """A coordinate of the grid, counted in elements, moved inside if padding asks for it."""
        one, two = self.number(1), self.number(2)
        if self.align_corners:
            at = (given + one) / two * self.number(self.size - 1)
        else:
            at = ((given + one) * self.number(self.size) - one) / two
        if self.padding_mode == "reflection":
            at = self._reflected(at)
        return at if self.padding_mode == "zeros" else self._clipped(at)

    def _clipped(self, at: Any) -> Any:
        last, zero = self.number(self.size - 1), self.number(0)
        # As in torch, where NaN becomes the first element of an image and the last of a volume.
        if self.rank == 2:
            return tirx.min(tirx.Select(at > zero, at, zero), last)
        return tirx.max(tirx.Select(at < last, at, last), zero)

    def _reflected(self, at: Any) -> Any:
        low = 0.0 if self.align_corners else -0.5
        span = self.size - 1.0 if self.align_corners else float(self.size)
        if span == 0:
            return self.number(0)
        distance = tirx.abs(at - self.number(low))
        extra = tirx.truncmod(distance, self.number(span))
        flips = tirx.floor(distance / self.number(span))
        odd = tirx.truncmod(flips, self.number(2)) > self.number(0.5)
        return tirx.Select(odd, self.number(span) - extra, extra) + self.number(low)

    def taps(self, at: Any, mode: str) -> list[tuple[Any, Any, Any]]:
        """Indices that are safe to read, their weights, and whether they are of the input."""
        if mode == "nearest":
            return [self._tap(tirx.nearbyint(at), None)]
        first, one = tirx.floor(at), self.number(1)
        rest = at - first
        return [self._tap(first, one - rest), self._tap(first + one, rest)]

    def _tap(self, at: Any, weight: Any) -> tuple[Any, Any, Any]:
        zero = self.number(0)
        # Compared as floats: NaN and what is too large for an index are outside.
        inside = tirx.all(at >= zero, at <= self.number(self.size - 1))
        return tirx.Select(inside, at, zero).astype("int64"), weight, inside


def _grid_sample(
    site: Site,
    input: Value,
    grid: Value,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    if mode == "bicubic":
        raise Unsupported("bicubic samples at a grid")
    if input.meta.dtype != grid.meta.dtype:
        raise Unsupported("operands of different dtypes")
    dtype = dtype_of(opmath(site.dtype)).name
    rank = input.meta.ndim - 2
    sampled = [
        Sampled(n, rank, padding_mode, bool(align_corners), dtype) for n in input.meta.shape[2:]
    ]

    def coordinate(tensors: Any, n: Any, *place_and_dim: Any) -> Any:
        *place, d = place_and_dim
        found = [s.coordinate(tensors[0](n, *place, d).astype(dtype)) for s in reversed(sampled)]
        # The grid names the last dimension first.
        return functools.reduce(
            lambda rest, i: tirx.Select(tirx.EQ(d, int64(i)), found[i], rest),
            reversed(range(rank - 1)),
            found[-1],
        )

    # Apart from the sampling, where each coordinate is used in half of all terms.
    coordinates = site.compute("coordinates", grid.meta.shape, coordinate, grid.expr)

    def body(tensors: Any, n: Any, c: Any, *place: Any) -> Any:
        x, at = tensors
        given = [at(n, *place, int64(rank - 1 - d)) for d in range(rank)]
        taps = [one.taps(coordinate, mode) for one, coordinate in zip(sampled, given)]

        def total(index: tuple[Any, ...], weights: tuple[Any, ...], inside: tuple[Any, ...]) -> Any:
            if len(index) == rank:
                factors = [weight for weight in weights if weight is not None]
                value, none = x(n, c, *index).astype(dtype), tirx.const(0, dtype)
                within = tirx.all(*inside)
                if rank == 2:
                    # torch multiplies the zeros outside, where a weight may be NaN; in three
                    # dimensions it passes over them.
                    value = tirx.Select(within, value, none)
                value = functools.reduce(lambda x, y: x * y, factors, value)
                return value if rank == 2 else tirx.Select(within, value, none)
            terms = [
                total((*index, i), (*weights, weight), (*inside, within))
                for i, weight, within in taps[len(index)]
            ]
            return functools.reduce(lambda x, y: x + y, terms)

        return total((), (), ()).astype(dtype_of(site.dtype).name)

    return site.compute("grid_sample", site.shape, body, input.expr, coordinates)


ROWS: tuple[Op, ...] = (
    Op("interpolate", (F.interpolate,), _interpolate, gradient=gradients.interpolate),
    Op("upsample", (F.upsample,), decompose=_upsample),
    Op("upsample_nearest", (F.upsample_nearest,), decompose=_upsample_nearest),
    Op("upsample_bilinear", (F.upsample_bilinear,), decompose=_upsample_bilinear),
    Op("grid_sample", (F.grid_sample,), _grid_sample, gradient=grid_sample),
)
