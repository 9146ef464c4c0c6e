"""Integer arithmetic that wraps around at the ends of its type, as torch's does.

TVM tells LLVM that no addition, subtraction or multiplication of 32 bits and more overflows,
signed or unsigned, and LLVM computes on from that: so there must be none. C++ says the same of
signed integers, and computes narrow ones as int, so that they wrap only where they are stored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvm import tirx

from babytriton.types import DType

Fn = Callable[[Any, Any], Any]
"""``operator.add``, ``sub`` or ``mul``."""


def on_cpu(fn: Fn, x: Any, y: Any, dtype: DType) -> Any:
    """``fn(x, y)`` for LLVM: in a wider type, or in halves where there is none."""
    if dtype.bits < 64:
        return _wider(fn, x, y, dtype, "int32" if dtype.bits < 32 else "int64")
    return _in_halves(fn, x, y)


def in_cuda(fn: Fn, x: Any, y: Any, dtype: DType) -> Any:
    """``fn(x, y)`` for CUDA C++: unsigned integers wrap there."""
    if dtype.bits < 32:
        return _wider(fn, x, y, dtype, "int32")
    return tirx.Cast(dtype.name, fn(_unsigned(x, dtype.name), _unsigned(y, dtype.name)))


def _wider(fn: Fn, x: Any, y: Any, dtype: DType, wide: str) -> Any:
    return tirx.Cast(dtype.name, fn(tirx.Cast(wide, x), tirx.Cast(wide, y)))


def _in_halves(fn: Fn, x: Any, y: Any) -> Any:
    """64 bits as two times 32, each of which leaves room for what is carried over."""
    low, high = _low(x), x >> _int64(32)
    other_low, other_high = _low(y), y >> _int64(32)
    if fn is operator.mul:
        product = tirx.Cast("uint64", low) * tirx.Cast("uint64", other_low)
        low = tirx.Cast("int64", product)
        carried = _low(tirx.Cast("int64", product >> tirx.IntImm("uint64", 32)))
        high = _low(high * other_low) + _low(_low(x) * other_high) + carried
    else:
        low = fn(low, other_low)
        high = fn(high, other_high) + (low >> _int64(32))
    return (high << _int64(32)) | _low(low)


def _low(x: Any) -> Any:
    return x & _int64(0xFFFFFFFF)


def _int64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _unsigned(x: Any, signed: str) -> Any:
    """A signed integer as the unsigned one of the same bits."""
    if not isinstance(x, tirx.IntImm) or x.value >= 0:
        return tirx.Cast(f"u{signed}", x)
    # TVM has no unsigned constant above the signed ones: in bits, -n is ~(n - 1).
    return tirx.bitwise_not(tirx.IntImm(f"u{signed}", -(int(x.value) + 1)))
