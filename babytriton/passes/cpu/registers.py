"""A processor's vector registers, as far as tiles of results are held in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm.target import Target, codegen

from babytriton.targets import SHORT_VECTORS, features

# Rows that keep the vector units busy, and how much longer one takes in tiles of four: measured on
# a Zen 4, and on a Granite Rapids, which multiplies twice as many numbers at once.
_BUSY, _BUSY_OF_INTEL = (6, 1.15), (12, 1.2)


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers.

    A tile of results is held in them: two vectors by as many rows as leave room for a row of one
    operand and an element of the other.

    Attributes:
        lanes: numbers in one.
        count: how many there are.
        busy_rows: so many rows of a tile keep the vector units busy.
        of_four: how much longer a row takes in tiles of four.
    """

    lanes: int
    count: int
    busy_rows: int
    of_four: float

    @classmethod
    def of(cls, target: Target, dtype: str) -> Registers:
        """Those of the processor that is compiled for, with numbers of a dtype."""
        dtype_bytes = tvm.DataType(dtype).bits // 8
        for feature, size, count in (("avx512f", 64, 32), ("avx", 32, 16), ("neon", 16, 32)):
            if codegen.llvm_cpu_has_features(feature, target):
                return cls(size // dtype_bytes, count, *_busy(target))
        return cls(16 // dtype_bytes, 16, *_BUSY)

    @property
    def columns(self) -> int:
        """Of a tile."""
        return 2 * self.lanes

    @property
    def rows(self) -> int:
        """Of a tile, at most."""
        return (self.count - 4) // 2 // 2 * 2

    def columns_beside(self, rows: int, width: int) -> int:
        """Of a tile with so many rows, for as many columns side by side as there is room for."""
        vectors = 2
        while 2 * vectors * (rows + 1) < self.count and vectors * self.lanes < width:
            vectors *= 2
        return vectors * self.lanes

    def waiting(self, rows: int) -> float:
        """How many times as long a row takes in tiles of so many."""
        missing = max(1, self.busy_rows / rows)
        return math.pow(missing, math.log(self.of_four) / math.log(self.busy_rows / 4))


def _busy(target: Target) -> tuple[int, float]:
    """Of a processor with vectors: `busy_rows` and `of_four`."""
    cpu = target.attrs.get("mcpu")
    return _BUSY_OF_INTEL if SHORT_VECTORS in features(cpu and str(cpu)) else _BUSY
