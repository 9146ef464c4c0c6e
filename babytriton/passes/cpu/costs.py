"""What ways to compute a matrix product cost on a processor: what was measured on a few."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.target import Target

from babytriton.processors import SHORT_VECTORS, features


@dataclass(frozen=True)
class Costs:
    """What was measured of products on a processor.

    Attributes:
        busy_rows: so many rows of a tile keep the vector units busy.
        of_four: how much longer a row takes in tiles of four.
        copy: to copy a number of what lies across takes as long as so many products,
        fold: to add up the lanes of a sum, as so many;
        loads: and loads for each product make it so much slower than tiles of an operand that is
            copied.
    """

    busy_rows: int
    of_four: float
    copy: float
    fold: float
    loads: float

    @classmethod
    def of(cls, target: Target) -> Costs:
        """On the processor that is compiled for, or the one most like it that was measured."""
        cpu = target.attrs.get("mcpu")
        return _XEON if SHORT_VECTORS in features(cpu and str(cpu)) else _ZEN_4

    def waiting(self, rows: int) -> float:
        """How many times as long a row takes in tiles of so many."""
        missing = max(1, self.busy_rows / rows)
        return math.pow(missing, math.log(self.of_four) / math.log(self.busy_rows / 4))

    def prefers_dots(self, rows: int, length: int) -> bool:
        """Whether rows are multiplied by rows of so many numbers, rather than by a copy."""
        return rows * (self.loads * length + self.fold) <= self.copy * length


_ZEN_4 = Costs(6, 1.15, copy=40, fold=160, loads=0.1)

_XEON = Costs(12, 1.2, copy=3, fold=19, loads=0.1)
"""Intel's processors with AVX-512, which multiply twice as many numbers at once."""
