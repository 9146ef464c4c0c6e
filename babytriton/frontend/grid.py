"""``grid``: several nested loops in one ``for``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


def grid(*sizes: int) -> Iterator[Any]:
    """Every index of a tensor of the given sizes, the last one fastest.

    Args:
        sizes: ``grid(n, m)`` gives ``(0, 0), (0, 1), ...``; of one size, ``grid(n)`` gives ints.

    Raises:
        TypeError: there is no size.
    """
    if not sizes:
        raise TypeError("grid expects at least one size")
    ranges = [range(size) for size in sizes]
    return iter(ranges[0]) if len(ranges) == 1 else itertools.product(*ranges)
