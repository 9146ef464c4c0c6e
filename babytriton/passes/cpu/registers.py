"""A processor's vector registers, as far as tiles of results are held in them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import Target, codegen


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers.

    A tile of results is held in them: two vectors by as many rows as leave room for a row of one
    operand and an element of the other.

    Attributes:
        lanes: numbers in one.
        count: how many there are.
    """

    lanes: int
    count: int

    @classmethod
    def of(cls, target: Target, dtype: str) -> Registers:
        """Those of the processor that is compiled for, with numbers of a dtype."""
        dtype_bytes = tvm.DataType(dtype).bits // 8
        for feature, size, count in (("avx512f", 64, 32), ("avx", 32, 16), ("neon", 16, 32)):
            if codegen.llvm_cpu_has_features(feature, target):
                return cls(size // dtype_bytes, count)
        return cls(16 // dtype_bytes, 16)

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
