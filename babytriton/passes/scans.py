"""Running sums and products, as the rules of all devices find them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.ops.scans import SCAN
from babytriton.passes.blocks import nodes

_COMBINES = {"add": (tirx.Add, 0), "mul": (tirx.Mul, 1)}


@dataclass(frozen=True)
class RowScan:
    """A running sum or product along the last axis of a tensor whose sizes are known.

    Attributes:
        source: what is scanned.
        result: of the scan.
        combine: a number with those before it.
        start: what a row starts from, in the dtype of the sum.
        rows: how many there are.
        length: of each.
    """

    source: tirx.Var
    result: tirx.Var
    combine: type
    start: ir.Expr
    rows: int
    length: int

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> RowScan | None:
        """What a kernel computes; None if it is something else."""
        if not func.attrs or SCAN not in func.attrs:
            return None
        operator, dim = str(func.attrs[SCAN][0]), int(func.attrs[SCAN][1])
        source, result = func.params
        if not len(source.shape) or not all(isinstance(n, tirx.IntImm) for n in source.shape):
            return None
        extents = [int(n) for n in source.shape]
        if math.prod(extents[dim + 1 :]) != 1:
            return None
        stores = nodes(func.body, tirx.BufferStore)
        (so_far,) = {x.buffer for x in stores if not x.buffer.same_as(result)}
        combine, neutral = _COMBINES[operator]
        start = tirx.const(neutral, so_far.ty.dtype)
        return cls(source, result, combine, start, math.prod(extents[:dim]), extents[dim])
