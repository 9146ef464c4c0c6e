"""A processor's caches, as far as the order of loops and stores depends on them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from tvm import ir, tirx

from babytriton.passes.blocks import parameters
from babytriton.types import find_dtype

LINE_BYTES = 64
"""Bytes in a line."""

LINE = LINE_BYTES // 4
"""Numbers of four bytes in a line."""

# What is read and written together must be so much of the last cache. Measured with results that
# the next kernel reads at once: of less, it finds them in the cache.
_SHARE = 0.75

# Bytes of the last cache, where Linux does not tell.
_LAST = 32 << 20

# Bytes of a way of the first cache; and how many ways it has, where Linux does not tell.
_WAY, _WAYS = 4096, 8


def drive_out(lines: int, distance: int) -> bool:
    """Whether lines fall into so few sets that they do not stay together.

    Args:
        lines: how many.
        distance: of the first bytes of one and the next.
    """
    return lines * math.gcd(distance, _WAY) >= ways() * _WAY


@cache
def ways() -> int:
    """How many lines a set of the processor's first cache holds."""
    return _told("index0/ways_of_associativity") or _WAYS


@cache
def last_cache() -> int:
    """Bytes in the processor's last cache; what is usual where Linux does not tell."""
    return (_told("index3/size") or _LAST >> 10) << 10


def _told(file: str) -> int | None:
    """A number that Linux tells of a cache."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache", file).read_text()
        return int(text.strip().removesuffix("K"))
    except (OSError, ValueError):
        return None


def is_too_large(func: tirx.PrimFunc) -> bool:
    """Whether it is known that what a kernel reads and writes is too large for the last cache."""
    return too_large(func) is True


def too_large(func: tirx.PrimFunc) -> bool | ir.Expr:
    """The same, as a condition where calls tell the sizes."""
    whole: int | ir.Expr = sum(map(_bytes, parameters(func)))
    limit = int(_SHARE * last_cache())
    return whole >= limit if isinstance(whole, int) else whole >= tirx.const(limit, "int64")


def element_bytes(buffer: tirx.Var) -> int:
    """Bytes of an element of a buffer."""
    dtype = find_dtype(str(buffer.ty.dtype))
    return dtype.bits // 8 if dtype is not None else 1


def _bytes(buffer: tirx.Var) -> int | ir.Expr:
    """The size of a buffer."""
    sizes = [int(n) if isinstance(n, tirx.IntImm) else n for n in buffer.ty.shape]
    return math.prod(sizes, start=element_bytes(buffer))
