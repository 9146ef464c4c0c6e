"""Blocks that sum up products of two operands: matrix products, convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.choice import FEW
from babytriton.passes.blocks import is_one, uses


@dataclass(frozen=True)
class Contraction:
    """A block `out[..., i, ..., j] += a[... i ...] * b[... j ...]`, by its axes."""

    info: SBlockInfo
    row: int  # The axis i: one that only the first operand has.
    column: int  # The axis j: the last spatial one, that only the other operand has.
    other: int  # Which read is that other operand.

    @property
    def height(self) -> int | None:
        """How many rows there are; None where a call tells."""
        return self._size(self.row)

    @property
    def width(self) -> int | None:
        """How many columns there are; None where a call tells."""
        return self._size(self.column)

    @property
    def depth(self) -> int | None:
        """How many products a sum is of; None where a call tells."""
        sizes = [it.dom for it in self.info.iters if it.kind == "R"]
        return math.prod(sizes) if all(isinstance(n, int) for n in sizes) else None

    def _size(self, axis: int) -> int | None:
        size = self.info.iters[axis].dom
        return size if isinstance(size, int) else None


def contraction(sch: s_tir.Schedule, info: SBlockInfo) -> Contraction | None:
    """How the block is a contraction; None if it is not."""
    block = sch.get(info.block_rv)
    operands = factors(block.body)
    if operands is None or set(info.dom_kind()) != {"S", "R"}:
        return None
    variables = [it.var for it in block.iter_vars]
    spatial = [axis for axis, it in enumerate(info.iters) if it.kind == "S" and not is_one(it.dom)]
    if len(spatial) < 2 or operands[0].source.same_as(operands[1].source):
        return None
    column = spatial[-1]
    holders = [n for n, load in enumerate(operands) if uses(load, variables[column])]
    if len(holders) != 1:
        return None
    other = operands[holders[0]]
    rows = [axis for axis in spatial[:-1] if not uses(other, variables[axis])]
    if not rows:
        return None
    sources = [region.source for region in block.reads]
    reads = [n for n, source in enumerate(sources) if source.same_as(other.source)]
    return Contraction(info, rows[-1], column, reads[0])


def factors(body: tirx.Stmt) -> tuple[ir.TensorLoad, ir.TensorLoad] | None:
    """The two loads, casts aside, of `out = out + left * right`."""
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, tirx.Add):
        return None
    total, product = body.value.a, body.value.b
    if not isinstance(product, tirx.Mul) or not isinstance(total, ir.TensorLoad):
        return None
    left, right = without_casts(product.a), without_casts(product.b)
    if isinstance(left, ir.TensorLoad) and isinstance(right, ir.TensorLoad):
        return left, right
    return None


def has_few_rows(block: s_tir.SBlock) -> bool:
    """Whether a product multiplies each number of an operand by a few others at most.

    Then it is no more work than reading the other operand.
    """
    return any(isinstance(n, int) and n <= FEW for n in _reuses(block))


def is_product(block: s_tir.SBlock) -> bool:
    """Whether the block is a matrix product, which wants a schedule of its own."""
    return bool(_reuses(block)) and not has_few_rows(block)


def _reuses(block: s_tir.SBlock) -> list[int | None]:
    """How often a product takes each number of an operand; None where a call tells that.

    Of each operand; nothing of what is no sum of products.
    """
    kinds = {it.iter_type for it in block.iter_vars}
    operands = factors(block.body) if tirx.IterVar.CommReduce in kinds else None
    found: list[int | None] = []
    for load in operands or ():
        extents = [
            it.dom.extent
            for it in block.iter_vars
            if it.iter_type == tirx.IterVar.DataPar and not uses(load, it.var)
        ]
        known = all(isinstance(n, tirx.IntImm) for n in extents)
        found.append(math.prod(map(int, extents)) if known else None)
    return found


def without_casts(expr: ir.Expr) -> ir.Expr:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr
