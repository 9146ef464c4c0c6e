"""Elementwise kernels on the CPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import is_at_least, is_pointwise, open_kernel
from babytriton.passes.cpu.transposes import tile_transpose, transposed_axis
from babytriton.passes.nests import Nest, contiguous_depth, fuse_nest, inlined_nests

# Below so many elements, waking the other threads costs more than they save.
PARALLEL = 32768

# Below so many elements of a transpose, those that a square reads are in the first cache anyway.
SQUARES = 8192

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
        for nest in inlined_nests(sch, infos):
            spread(sch, nest)
        return sch


def spread(sch: s_tir.Schedule, nest: Nest) -> None:
    """Run the nest over the machine's threads."""
    if not nest[0].iters:  # A single number.
        return
    is_large = is_at_least(nest[0], PARALLEL)
    depth = contiguous_depth(sch, nest)
    across = transposed_axis(sch, nest[0]) if len(nest) == 1 and depth == 1 else None
    if across is not None and (is_large or is_at_least(nest[0], SQUARES)):
        tasks = tile_transpose(sch, nest[0], across)
        if is_large:
            sch.parallel(tasks)
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
