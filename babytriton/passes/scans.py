"""Running sums and products, as the rules of all devices find them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import tvm_ffi
from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.ops.scans import SCAN
from babytriton.passes.blocks import element, plain_blocks

SCANNED = "scanned"
"""The name of the block that a running sum is of, where it is written as what it does to points."""

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
        dim: the dimension of the rows.
        backwards: whether it begins with the last element of each.
        block: that computes it.
    """

    source: tirx.Var
    result: tirx.Var
    combine: type
    start: ir.Expr
    rows: int | ir.Expr
    length: int | ir.Expr
    dim: int
    backwards: bool
    block: s_tir.SBlock

    @classmethod
    def of(cls, block: s_tir.SBlock) -> RowScan | None:
        """What a block computes; None if it is something else."""
        if not is_scan(block):
            return None
        kind, dim, backwards = block.annotations[SCAN]
        dim = int(dim)
        loads = nodes(block.body, ir.TensorLoad)
        stores = nodes(block.body, tirx.BufferStore)
        own = set(block.alloc_buffers)
        (source,) = {load.source for load in loads if load.source not in own}
        (result,) = {store.buffer for store in stores if store.buffer not in own}
        (so_far,) = own
        extents = [int(n) if isinstance(n, tirx.IntImm) else n for n in source.shape]
        if not extents or any(extent != 1 for extent in extents[dim + 1 :]):
            return None
        combine, neutral = _COMBINES[str(kind)]
        start = tirx.const(neutral, so_far.ty.dtype)
        rows = reduce(operator.mul, extents[:dim], 1)
        length, from_the_end = extents[dim], bool(backwards)
        return cls(source, result, combine, start, rows, length, dim, from_the_end, block)

    def in_source_dtype(self) -> RowScan:
        """The same, with sums in the dtype of what is summed up."""
        return replace(self, start=self.start.astype(self.source.ty.dtype))

    def points(self) -> list[s_tir.SBlock]:
        """Blocks over all of its points: what it adds up there, and what it stores.

        Between the two is what the threads of a row do together.
        """
        place = tirx.Var("v_element", "int64")
        (store,) = [x for x in nodes(self.block.body, tirx.BufferStore) if self._is_result(x)]
        walk = next(x for x in nodes(self.block.body, tirx.For))
        index = [place if n == self.dim else x for n, x in enumerate(store.indices)]
        axes = [axis for axis in self.block.iter_vars if any(axis.var.same_as(n) for n in index)]
        whole = ir.Range.from_min_extent(walk.min, walk.extent)
        axes.insert(self.dim, tirx.IterVar(whole, place, tirx.IterVar.DataPar))
        dtype = self.start.ty.dtype
        wide = tirx.decl_buffer(list(self.source.shape), dtype, f"{self.source.name}_wide")
        value = tirx.BufferLoad(self.source, index).astype(dtype)
        total = tirx.BufferLoad(wide, index).astype(self.result.ty.dtype)
        return [
            _block(axes, SCANNED, tirx.BufferStore(wide, value, index), self.source),
            _block(axes, "scan", tirx.BufferStore(self.result, total, index), wide),
        ]

    def _is_result(self, store: tirx.BufferStore) -> bool:
        return bool(store.buffer.same_as(self.result))


def _block(
    axes: Sequence[tirx.IterVar], name: str, store: tirx.BufferStore, source: tirx.Var
) -> s_tir.SBlock:
    """A block with axes of its own."""
    fresh = {axis.var: tirx.Var(axis.var.name, "int64") for axis in axes}
    own = [tirx.IterVar(axis.dom, fresh[axis.var], axis.iter_type) for axis in axes]
    store = tvm_ffi.structural_map(store, (ir.Var, lambda var: fresh.get(var, var)))
    region = [element(buffer, store.indices) for buffer in (source, store.buffer)]
    return s_tir.SBlock(own, region[:1], region[1:], name, store)


def is_scan(block: s_tir.SBlock) -> bool:
    """Whether a block is a running sum or product, along whichever axis."""
    return SCAN in block.annotations


def row_scan(func: tirx.PrimFunc) -> RowScan | None:
    """The running sum or product that is all that a kernel computes."""
    blocks = plain_blocks(func)
    return RowScan.of(blocks[0]) if len(blocks) == 1 else None


def as_points(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    """The blocks, with what running sums along rows do to points in the place of these."""
    found: list[s_tir.SBlock] = []
    for block in blocks:
        scan = RowScan.of(block)
        found += [block] if scan is None else scan.points()
    return found
