"""What gradients of reading and writing at places are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops.parts import part


def wrapped(index: Any, size: Any) -> Any:
    """Indices of which negative ones count from the end, from the start."""
    return torch.where(index < 0, index + size, index)


def padded(x: Any, pads: Sequence[tuple[Any, Any]]) -> Any:
    """Zeros before and after in each dimension; negative numbers of them cut off."""
    flat = [n for pair in reversed(pads) for n in pair]
    return F.pad(x, flat) if any(type(n) is not int or n != 0 for n in flat) else x


def padded_in(x: Any, dim: int, before: Any, after: Any) -> Any:
    """The same in one dimension."""
    return padded(x, [(before, after) if d == dim else (0, 0) for d in range(x.ndim)])


@part
def positions(like: Any, length: Any, dim: int = 0, ndim: int = 1) -> Any:
    """How far along a dimension each element is, as a tensor that broadcasts.

    Args:
        like: any tensor. A row that reads none would be a tensor in memory, not part of a kernel.
        length: of the dimension.
        dim: the dimension.
        ndim: how many there are.
    """
    counted = torch.arange(length, device=like.device)
    return counted.reshape([-1 if d == dim % ndim else 1 for d in range(ndim)] if ndim else [])


@part
def is_place(index: Any, size: Any, dim: int) -> Any:
    """Whether each place along a dimension is the one that an index names.

    Args:
        index: with one element along the dimension; negative ones count from the end.
        size: of the dimension.
        dim: the dimension.
    """
    places = torch.arange(size, device=index.device)
    return places.reshape([-1 if d == dim else 1 for d in range(index.ndim)]) == index % size
