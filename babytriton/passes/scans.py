"""Running sums and products, as the rules of all devices find them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce

from tvm import ir, tirx

from babytriton.ops.scans import SCAN
from babytriton.passes.blocks import nodes

_COMBINES = {"add": (tirx.Add, 0), "mul": (tirx.Mul, 1)}


@dataclass(frozen=True)
class RowScan:
    """A running sum or product along the last axis of a tensor.

    Attributes:
        source: what is scanned.
        result: of the scan.
        combine: a number with those before it.
        start: what a row starts from, in the dtype of the sum.
        rows: how many there are: a number, or what a call computes of sizes that it tells.
        length: of each, likewise.
    """

    source: tirx.Var
    result: tirx.Var
    combine: type
    start: ir.Expr
    rows: int | ir.Expr
    length: int | ir.Expr

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> RowScan | None:
        """What a kernel computes; None if it is something else."""
        if not func.attrs or SCAN not in func.attrs:
            return None
        kind, dim = str(func.attrs[SCAN][0]), int(func.attrs[SCAN][1])
        source, result = func.params
        extents = [int(n) if isinstance(n, tirx.IntImm) else n for n in source.shape]
        if not extents or any(extent != 1 for extent in extents[dim + 1 :]):
            return None
        stores = nodes(func.body, tirx.BufferStore)
        (so_far,) = {x.buffer for x in stores if not x.buffer.same_as(result)}
        combine, neutral = _COMBINES[kind]
        start = tirx.const(neutral, so_far.ty.dtype)
        rows = reduce(operator.mul, extents[:dim], 1)
        return cls(source, result, combine, start, rows, extents[dim])
