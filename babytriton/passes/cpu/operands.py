"""Copies of what is multiplied: filled up to whole tiles, or in the order that tiles read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.passes.blocks import same_extents
from babytriton.passes.contractions import Contraction
from babytriton.passes.cpu.caches import LINE, drive_out
from babytriton.passes.cpu.elementwise import PARALLEL
from babytriton.passes.cpu.transposes import turn_over


@dataclass(frozen=True)
class Padding:
    """What fills the operands of a product up to whole tiles.

    Attributes:
        copied: the block that copies the true results out, if any.
        fillers: the blocks that fill up.
        parts: the blocks that copy what is read of operands of which there is more.
    """

    copied: s_tir.schedule.SBlockRV | None
    fillers: list[s_tir.schedule.SBlockRV]
    parts: list[s_tir.schedule.SBlockRV]


def pad(sch: s_tir.Schedule, product: Contraction, rows: int, columns: int) -> Padding:
    """Fill the operands up to whole tiles, for :func:`inline_padding` to leave no copies."""
    info, block = product.info, product.info.block_rv
    parts = _parts(sch, product)
    sizes = {product.row: rows, product.column: columns}
    if all(info.iters[axis].dom % size == 0 for axis, size in sizes.items()):
        return Padding(None, [], parts)
    before = {sch.get(other).name_hint for other in sch.get_producers(block)}
    sch.pad_einsum(block, [sizes.get(axis, 1) for axis in range(len(info.iters))])
    after = sch.get_producers(block)
    (copied,) = sch.get_consumers(block)
    fillers = [other for other in after if sch.get(other).name_hint not in before]
    return Padding(copied, fillers, parts)


def _parts(sch: s_tir.Schedule, product: Contraction) -> list[s_tir.schedule.SBlockRV]:
    """Have a product read copies of the parts that it reads of operands of which there is more.

    Else these would be filled up from their ends on, and copied whole.
    """
    info, block = product.info, product.info.block_rv
    variables = [it.var for it in sch.get(block).iter_vars]
    found = []
    for read in (row_operand(sch, product), product.other):
        region = sch.get(block).reads[read]
        kinds = [axis_of(rng.min, variables) for rng in region.region]
        pairs = [(n, axis) for n, axis in enumerate(kinds) if axis is not None]
        whole = [region.source.shape[n] for n, _ in pairs]
        if same_extents(whole, [info.iters[axis].dom for _, axis in pairs]):
            continue
        copy = sch.reindex(block, ("read", read))
        used = sorted(axis for _, axis in pairs)
        order = [used.index(axis) for _, axis in pairs]
        sch.transform_layout(copy, ("write", 0), partial(_in_order, order))
        found.append(copy)
    return found


def _in_order(order: Sequence[int], *index: tirx.Var) -> list[tirx.Var]:
    return [index[n] for n in order]


def inline_padding(sch: s_tir.Schedule, product: Contraction, padding: Padding) -> None:
    """Fill copies of operands up while they are made, and those without a copy not at all.

    Of these, the last row is read in place of the rows that are missing: what becomes of it there
    is not stored.

    Args:
        sch: the kernel.
        product: what reads the operands, or their copies.
        padding: what fills them up.
    """
    for filler in padding.fillers:
        (reader,) = sch.get_consumers(filler)
        if sch.get(reader).same_as(sch.get(product.info.block_rv)):
            _repeat_last(sch, filler)
        sch.compute_inline(filler)
    for part in padding.parts:
        sch.compute_inline(part)


def _repeat_last(sch: s_tir.Schedule, filler: s_tir.schedule.SBlockRV) -> None:
    """Fill up with copies of the last row."""
    block = sch.get(filler)
    source, filled = block.reads[0].source, block.writes[0].source
    indices = [
        it.var if tvm_ffi.structural_equal(size, padded) else tirx.min(it.var, size - 1)
        for it, size, padded in zip(block.iter_vars, source.shape, filled.shape, strict=True)
    ]
    made = s_tir.SBlock(
        block.iter_vars,
        [tirx.BufferRegion(source, [ir.Range.from_min_extent(index, 1) for index in indices])],
        block.writes,
        block.name_hint,
        tirx.BufferStore(filled, tirx.BufferLoad(source, indices), block.body.indices),
        annotations=block.annotations,
    )
    sch.state.replace(sch.get_sref(filler), made, {block: made})


def lies_along(sch: s_tir.Schedule, product: Contraction) -> bool:
    """Whether the columns of the operand that has them lie side by side."""
    block = sch.get(product.info.block_rv)
    last = block.reads[product.other].region[-1].min
    return bool(last.same_as(block.iter_vars[product.column].var))


def row_operand(sch: s_tir.Schedule, product: Contraction) -> int:
    """Which read is the operand that has the rows."""
    block = sch.get(product.info.block_rv)
    written = block.writes[0].source
    return next(
        n
        for n, region in enumerate(block.reads)
        if n != product.other and not region.source.same_as(written)
    )


def is_crowded(sch: s_tir.Schedule, product: Contraction, rows: int) -> bool:
    """Whether the rows of a tile drive each other out of the cache."""
    block = sch.get(product.info.block_rv)
    region = block.reads[row_operand(sch, product)]
    variables = [it.var for it in block.iter_vars]
    kinds = [axis_of(rng.min, variables) for rng in region.region]
    behind = region.source.shape[kinds.index(product.row) + 1 :]
    if not all(isinstance(size, tirx.IntImm) for size in behind):
        return False
    distance = math.prod(map(int, behind)) * tvm.DataType(str(region.source.ty.dtype)).bits // 8
    return drive_out(rows, distance)


@dataclass(frozen=True)
class Panels:
    """A copy of an operand, panel by panel, that tiles read from front to back.

    Attributes:
        block: copies.
        size: rows or columns of a panel.
        place: which of the operand's axes these are.
        leading: the axes before the panels.
        trailing: those in a panel.
    """

    block: s_tir.schedule.SBlockRV
    size: int
    place: int
    leading: list[int]
    trailing: list[int]

    @classmethod
    def of(
        cls, sch: s_tir.Schedule, product: Contraction, read: int, axis: int, size: int
    ) -> Panels:
        """Have a product read a copy.

        Args:
            sch: the kernel.
            product: what reads the operand.
            read: which of its reads it is.
            axis: the rows or the columns, whichever the operand has.
            size: how many of these a tile has.
        """
        info, block = product.info, product.info.block_rv
        body = sch.get(block)
        variables = [it.var for it in body.iter_vars]
        indices = [rng.min for rng in body.reads[read].region]
        kinds = [axis_of(index, variables) for index in indices]
        place = kinds.index(axis)
        rest = [n for n in range(len(kinds)) if n != place]
        leading = [n for n in rest if is_spatial(info, kinds[n])]
        trailing = [n for n in rest if n not in leading]

        def panels(*index: tirx.Var) -> list[ir.Expr]:
            before, within = ([index[n] for n in axes] for axes in (leading, trailing))
            return [*before, index[place] // size, *within, index[place] % size]

        copy = sch.cache_read(block, read, "global")
        sch.transform_layout(copy, ("write", 0), panels)
        return cls(copy, size, place, leading, trailing)

    def made_before(self, sch: s_tir.Schedule) -> None:
        """Copy all panels before they are read."""
        panel = self._ordered(sch)
        extents = [sch.get(loop).extent for loop in sch.get_loops(self.block)]
        known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
        if len(known) < len(extents) or math.prod(known) >= PARALLEL:
            sch.parallel(panel)

    def made_within(self, sch: s_tir.Schedule, tasks: s_tir.schedule.LoopRV) -> None:
        """Copy the panel that a task reads at its start."""
        sch.compute_at(self.block, tasks, preserve_unit_loops=True)
        self._ordered(sch)

    def _ordered(self, sch: s_tir.Schedule) -> s_tir.schedule.LoopRV:
        """Copy panel after panel; gives the loop over them."""
        loops = sch.get_loops(self.block)[-1 - len(self.leading) - len(self.trailing) :]
        panel, lane = sch.split(loops[self.place], [None, self.size])
        before = [loops[n] for n in self.leading]
        inner = [loops[n] for n in self.trailing]
        extent = sch.get(inner[-1]).extent if inner else None
        is_across = bool(inner) and self.trailing[-1] == len(loops) - 1
        if is_across and isinstance(extent, tirx.IntImm):
            # Whole lines of the cache are read, and the place where they go stays in it.
            line = largest_divisor(int(extent), LINE)
            inner[-1], along = sch.split(inner[-1], [None, line])
            if line == LINE and self.size % LINE == 0 and _is_copied(sch, self.block):
                square, lane = sch.split(lane, [None, LINE])
                sch.reorder(*before, panel, *inner, square, along, lane)
                turn_over(sch, self.block, self.place, square)
            else:
                sch.reorder(*before, panel, *inner, lane, along)
        else:
            sch.reorder(*before, panel, *inner, lane)
        return sch.fuse(*before, panel)


def _is_copied(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether a block stores what it loads, and asks nothing."""
    return isinstance(sch.get(block).body.value, ir.TensorLoad)


def axis_of(index: ir.Expr, variables: list[tirx.Var]) -> int | None:
    """Which axis the index is; None for a constant."""
    return next((n for n, var in enumerate(variables) if index.same_as(var)), None)


def is_spatial(info: SBlockInfo, axis: int | None) -> bool:
    return axis is None or info.iters[axis].kind == "S"


def largest_divisor(size: int, limit: int) -> int:
    return max(n for n in range(1, limit + 1) if size % n == 0)
