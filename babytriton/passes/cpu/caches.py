"""A processor's caches, as far as the order of loops and stores depends on them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from tvm import tirx

from babytriton.passes.blocks import parameters
from babytriton.types import find_dtype

LINE_BYTES = 64
"""Bytes in a line."""

LINE = LINE_BYTES // 4
"""Numbers of four bytes in a line."""

# What is read and written together must be so much of the last cache. Measured with results that
# the next kernel reads at once: of less, it finds them in the cache.
_SHARE = 0.75

# Bytes of a way, and how many ways there are: 32 KB on most, of which newer ones have a half more.
_WAY, _WAYS = 4096, 8


def drive_out(lines: int, distance: int) -> bool:
    """Whether lines fall into so few sets that they do not stay together.

    Args:
        lines: how many.
        distance: of the first bytes of one and the next.
    """
    return lines * math.gcd(distance, _WAY) >= _WAYS * _WAY


@cache
def last_cache() -> int:
    """Bytes in the processor's last cache; what is usual where Linux does not tell."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        return 32 << 20


def is_too_large(func: tirx.PrimFunc) -> bool:
    """Whether what a kernel reads and writes is too large for the last cache."""
    return sum(map(_bytes, parameters(func))) >= _SHARE * last_cache()


def width(buffer: tirx.Var) -> int:
    """Bytes of an element of a buffer."""
    dtype = find_dtype(str(buffer.ty.dtype))
    return dtype.bits // 8 if dtype is not None else 1


def _bytes(buffer: tirx.Var) -> int:
    """The size of a buffer; 0 where that is symbolic."""
    shape = buffer.ty.shape
    if not all(isinstance(size, tirx.IntImm) for size in shape):
        return 0
    return math.prod(int(size) for size in shape) * width(buffer)
