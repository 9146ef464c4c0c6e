"""Weighted sums along single dimensions, with weights that the sizes alone decide: transposed.

Averages of windows and resized grids are that: each element of the result is a sum of a few
elements of the input along each dimension, one dimension after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from babytriton.ops.refusals import Unsupported

_FEW = 4
"""Terms that are added one by one, as part of an elementwise kernel."""


@dataclass(frozen=True)
class Taps:
    """What the elements of a result are sums of along a dimension.

    Attributes:
        size: of the input.
        places: of what is read, a row for each element of the result.
        weights: of the same shape; 0 where nothing is read.
    """

    size: int
    places: np.ndarray
    weights: np.ndarray

    def pull(self, grad: Any, dim: int) -> Any:
        """The gradient of the input, from that of the result.

        Its dimension has size 1 where all of the input's elements have the same.
        """
        places, weights = self._transposed()
        if places.shape[1] > _FEW:
            return self._summed(grad, dim, places, weights)
        total: Any = None
        for place, weight in zip(places.T, weights.T):
            term = _weighted(_read(grad, dim, place), dim, weight)
            total = term if total is None else total + term
        return total

    def _summed(self, grad: Any, dim: int, places: np.ndarray, weights: np.ndarray) -> Any:
        """As one reduction."""
        before, after = list(grad.shape[:dim]), list(grad.shape[dim + 1 :])
        index = grad.new_tensor(places.ravel().tolist(), dtype=torch.int64)
        read = grad.index_select(dim, index).reshape([*before, *places.shape, *after])
        factor = grad.new_tensor(weights.tolist())
        return _within(read, factor.reshape([*places.shape, *[1] * len(after)])).sum(dim + 1)

    def _transposed(self) -> tuple[np.ndarray, np.ndarray]:
        """The results that read each element of the input, and its weights in them."""
        rows, taps = np.nonzero(self.weights)
        where, weights = self.places[rows, taps], self.weights[rows, taps]
        order = np.argsort(where, kind="stable")
        where, rows, weights = where[order], rows[order], weights[order]
        counts = np.bincount(where, minlength=self.size)
        rank = np.arange(len(where)) - (np.cumsum(counts) - counts)[where]
        found = np.zeros((self.size, max(int(counts.max()), 1)), np.int64)
        factors = np.zeros(found.shape)
        found[where, rank], factors[where, rank] = rows, weights
        return found, factors


def _read(grad: Any, dim: int, places: np.ndarray) -> Any:
    size = grad.shape[dim]
    if size == 1 or (len(places) == size and bool((places == np.arange(size)).all())):
        return grad
    return grad.index_select(dim, grad.new_tensor(places.tolist(), dtype=torch.int64))


def _weighted(term: Any, dim: int, weights: np.ndarray) -> Any:
    first = float(weights[0])
    if bool((weights == first).all()):
        return term if first == 1 else term * first
    shape = [len(weights) if d == dim else 1 for d in range(term.ndim)]
    factor = term.new_tensor(weights.tolist()).reshape(shape)
    return term * factor if bool(weights.all()) else _within(term, factor)


def _within(term: Any, factor: Any) -> Any:
    """A product that is 0 for a factor of 0, whatever the other one is."""
    return torch.where(factor == 0, 0.0, term * factor)


def averages(
    size: int, kernel: int, stride: int, padding: int, count: int, divided: bool, padded: bool
) -> Taps:
    """Of windows, some of which reach outside, into padding.

    Args:
        size: of the input.
        kernel, stride, padding: as torch's.
        count: of windows.
        divided: whether sums are divided by the windows' lengths at all.
        padded: whether padding counts among these; what lies behind it never does.
    """
    first = np.arange(count) * stride - padding
    end = np.minimum(first + kernel, size + padding)
    length = end - first if padded else np.minimum(end, size) - np.maximum(first, 0)
    places = first[:, None] + np.arange(kernel)
    inside = (places >= 0) & (places < size)
    weights = inside / length[:, None] if divided else inside.astype(float)
    return Taps(size, np.where(inside, places, 0), weights)


def shares(size: int, count: int) -> Taps:
    """Of windows that share the elements of a dimension out: adaptive averages."""
    first = np.arange(count) * size // count
    length = -(-(np.arange(count) + 1) * size // count) - first
    places = first[:, None] + np.arange(length.max())
    inside = np.arange(length.max()) < length[:, None]
    return Taps(size, np.where(inside, places, 0), inside / length[:, None])


def sizes_of(shape: Any, rank: int) -> list[int]:
    """The last sizes of a shape.

    Raises:
        Unsupported: one of them is known only at the call.
    """
    sizes = list(shape[-rank:])
    if any(type(n) is not int for n in sizes):
        raise Unsupported("a symbolic size")
    return sizes
