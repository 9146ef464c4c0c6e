"""Elementwise kernels on the CPU."""

from __future__ import annotations

import math

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_at_least, is_pointwise, nodes, open_kernel
from babytriton.passes.cpu.caches import LINE, drive_out
from babytriton.passes.nests import Nest, contiguous_depth, fuse_nest, pointwise_nests

# Below so many elements, waking the other threads costs more than they save.
PARALLEL = 32768

# With fewer rows than this, rows alone do not fill a machine's threads: cut the row up too.
ROWS = 64


class Elementwise(ScheduleRule):
    """Takes functions of pointwise blocks alone; gives loops over contiguous elements.

    Loops stay scalar on purpose: LLVM vectorizes them itself, as fast as loops vectorized here,
    with a tail for any size, masks for branches, and a third of the compile time.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        if not all(is_pointwise(sch, info) for info in infos):
            return None
        for nest in pointwise_nests(sch, inline_cheap(sch, infos)):
            spread(sch, nest)
        return sch


def spread(sch: s_tir.Schedule, nest: Nest) -> None:
    """Run the nest over the machine's threads."""
    if not nest[0].iters:  # A single number.
        return
    is_large = is_at_least(nest[0], PARALLEL)
    depth = contiguous_depth(sch, nest)
    across = transposed_axis(sch, nest[0]) if len(nest) == 1 and depth == 1 else None
    if is_large and across is not None:
        sch.parallel(tile_transpose(sch, nest[0], across))
        return
    outer, inner = fuse_nest(sch, nest, depth)
    if not is_large:
        return
    if outer is None:
        # TVM gives each thread one run of consecutive iterations, so this stays contiguous.
        sch.parallel(inner)
        return
    rows = sch.get(outer).extent
    if isinstance(rows, tirx.IntImm) and int(rows) < ROWS:
        piece, _ = sch.split(inner, [ROWS // int(rows), None])
        outer = sch.fuse(outer, piece)
    sch.parallel(outer)


def transposed_axis(sch: s_tir.Schedule, info: SBlockInfo) -> int | None:
    """An axis, not the last, that is the last of something the block reads."""
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    last = [load.indices[-1] for load in nodes(block.body.value, ir.TensorLoad) if load.indices]
    axes = [
        axis for axis, var in enumerate(variables[:-1]) if any(index.same_as(var) for index in last)
    ]
    return axes[-1] if axes else None


def tile_transpose(sch: s_tir.Schedule, info: SBlockInfo, across: int) -> s_tir.schedule.LoopRV:
    """Go through a transpose in square tiles, whose cache lines are used up while at hand."""
    loops = sch.get_loops(info.block_rv)
    *_, column = loops
    crowded = crowded_reads(sch, info, across)
    row = loops[across]
    others = [loop for n, loop in enumerate(loops[:-1]) if n != across]
    rows, i = sch.split(row, [None, LINE])
    columns, j = sch.split(column, [None, LINE])
    sch.reorder(*others, rows, columns, i, j)
    for read in crowded:
        sch.compute_at(sch.cache_read(info.block_rv, read, "local"), columns)
    return sch.fuse(*others, rows)


def crowded_reads(sch: s_tir.Schedule, info: SBlockInfo, across: int) -> list[int]:
    """What is read across the rows of results, in lines that drive each other out of the cache."""
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    found = []
    for n, read in enumerate(block.reads):
        indices = [rng.min for rng in read.region]
        places = [i for i, index in enumerate(indices) if index.same_as(variables[-1])]
        if not places or not indices[-1].same_as(variables[across]):
            continue
        behind = read.source.shape[places[-1] + 1 :]
        if not all(isinstance(size, tirx.IntImm) for size in behind):
            continue
        item = tvm.DataType(str(read.source.ty.dtype)).bits // 8
        if drive_out(LINE, math.prod(map(int, behind)) * item):
            found.append(n)
    return found
