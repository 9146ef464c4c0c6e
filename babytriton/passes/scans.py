"""Running sums, products and extremes, as the rules of all devices find them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import tvm_ffi
from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.ops.scans import ALONE, SCAN
from babytriton.passes.blocks import element, plain_blocks
from babytriton.passes.operators import COMBINES, Operator, operator_of

SCANNED = "scanned"
"""What the names of blocks begin with that a walk is of, where it is written as what it does to
points: one for each part of its operator."""


@dataclass(frozen=True)
class RowScan:
    """A running sum, product or extreme along the last axis of a tensor.

    Attributes:
        source: what is scanned.
        results: of the scan, and what each of them is: :data:`babytriton.ops.scans.SCAN`.
        kind: how numbers are combined, likewise.
        dtype: to do that in.
        rows: how many there are: a number, or what a call computes of sizes that it tells.
        length: of each, likewise.
        dim: the dimension of the rows.
        backwards: whether it begins with the last element of each.
        block: that computes it.
    """

    source: tirx.Var
    results: tuple[tuple[tirx.Var, str], ...]
    kind: str
    dtype: str
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
        kind, dim, backwards, *kinds = block.annotations[SCAN]
        dim = int(dim)
        own = set(block.alloc_buffers)
        (source,) = {x.source for x in nodes(block.body, ir.TensorLoad) if x.source not in own}
        extents = [int(n) if isinstance(n, tirx.IntImm) else n for n in source.shape]
        if not extents or any(extent != 1 for extent in extents[dim + 1 :]):
            return None
        results = tuple((store.buffer, str(kind)) for store, kind in zip(results_of(block), kinds))
        dtype = str(block.alloc_buffers[0].ty.dtype)
        rows = reduce(operator.mul, extents[:dim], 1)
        length, from_the_end = extents[dim], bool(backwards)
        return cls(source, results, str(kind), dtype, rows, length, dim, from_the_end, block)

    @property
    def is_plain(self) -> bool:
        """Whether it is an operator on two numbers that has one result, and nothing besides."""
        return self.kind in COMBINES

    @property
    def combine(self) -> type:
        """The operator, where it is plain."""
        combine: type = COMBINES[self.kind][0]
        return combine

    @property
    def start(self) -> ir.Expr:
        """What a row starts from, where it is plain."""
        return tirx.const(COMBINES[self.kind][1], self.dtype)

    @property
    def result(self) -> tirx.Var:
        """What is stored, where it is plain."""
        ((result, _),) = self.results
        return result

    def operator(self, dtype: str | None = None) -> Operator:
        """How numbers are combined, perhaps in another dtype."""
        has_places = any(kind == "place" for _, kind in self.results)
        source = str(self.source.ty.dtype)
        return operator_of(self.kind, source, dtype or self.dtype, has_places, self.length)

    def points(self, own: Operator | None = None) -> list[s_tir.SBlock]:
        """Blocks over all of its points: what it combines there, and what it stores.

        Between the two is what the threads of a row do together.

        Args:
            own: how they combine it.
        """
        own = own or self.operator()
        place = tirx.Var("v_element", "int64")
        stores = results_of(self.block)
        walk = next(x for x in nodes(self.block.body, tirx.For))
        index = [place if n == self.dim else x for n, x in enumerate(stores[0].indices)]
        axes = [axis for axis in self.block.iter_vars if any(axis.var.same_as(n) for n in index)]
        whole = ir.Range.from_min_extent(walk.min, walk.extent)
        axes.insert(self.dim, tirx.IterVar(whole, place, tirx.IterVar.DataPar))
        shape, name = list(self.source.shape), self.source.name
        parts = [
            tirx.decl_buffer(shape, start.ty.dtype, f"{name}{part or '_wide'}")
            for part, start in zip(own.parts, own.starts)
        ]
        found = [
            _block(axes, f"{SCANNED}{n}", tirx.BufferStore(part, value, index), [self.source])
            for n, (part, value) in enumerate(
                zip(parts, own.lifted(tirx.BufferLoad(self.source, index), place))
            )
        ]
        state = [tirx.BufferLoad(part, index) for part in parts]
        return found + [
            _block(
                axes,
                "scan",
                tirx.BufferStore(out, own.result(kind, state).astype(out.ty.dtype), index),
                parts,
            )
            for out, kind in self.results
        ]


def results_of(block: s_tir.SBlock) -> list[tirx.BufferStore]:
    """The stores of a walk's results."""
    own = set(block.alloc_buffers)
    return [store for store in nodes(block.body, tirx.BufferStore) if store.buffer not in own]


def _block(
    axes: Sequence[tirx.IterVar], name: str, store: tirx.BufferStore, sources: Sequence[tirx.Var]
) -> s_tir.SBlock:
    """A block with axes of its own."""
    fresh = {axis.var: tirx.Var(axis.var.name, "int64") for axis in axes}
    own = [tirx.IterVar(axis.dom, fresh[axis.var], axis.iter_type) for axis in axes]
    store = tvm_ffi.structural_map(store, (ir.Var, lambda var: fresh.get(var, var)))
    read = {load.source for load in nodes(store, ir.TensorLoad)}
    reads = [element(buffer, store.indices) for buffer in sources if buffer in read]
    return s_tir.SBlock(own, reads, [element(store.buffer, store.indices)], name, store)


def is_walk(block: s_tir.SBlock) -> bool:
    """Whether a block walks along an axis, and is marked as such."""
    return SCAN in block.annotations


def is_scan(block: s_tir.SBlock) -> bool:
    """Whether it is one that threads may share, along whichever axis."""
    return is_walk(block) and str(block.annotations[SCAN][0]) != ALONE


def row_scan(func: tirx.PrimFunc) -> RowScan | None:
    """The walk along rows that is all that a kernel computes."""
    blocks = plain_blocks(func)
    return RowScan.of(blocks[0]) if len(blocks) == 1 else None


def as_points(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    """The blocks, with what walks along rows do to points in the place of these."""
    found: list[s_tir.SBlock] = []
    for block in blocks:
        scan = RowScan.of(block)
        found += [block] if scan is None else scan.points()
    return found
