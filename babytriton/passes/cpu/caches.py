"""A processor's first cache, as far as the order of loops depends on it."""

from __future__ import annotations

import math

LINE = 16
"""Numbers of four bytes in a line."""

# Bytes of a way, and how many ways there are: 32 KB on most, of which newer ones have a half more.
_WAY, _WAYS = 4096, 8


def drive_out(lines: int, distance: int) -> bool:
    """Whether lines fall into so few sets that they do not stay together.

    Args:
        lines: how many.
        distance: of the first bytes of one and the next.
    """
    return lines * math.gcd(distance, _WAY) >= _WAYS * _WAY
