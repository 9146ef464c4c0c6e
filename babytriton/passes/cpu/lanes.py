"""Reductions kept in vector lanes: float sums may not be reordered by LLVM, so TVM must do it."""

from __future__ import annotations

import math

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize

from babytriton.passes.blocks import nodes, uses
from babytriton.passes.nests import at_zero, is_equal, offset

# Four 512-bit vectors of float32: enough independent sums to hide an addition's latency.
LANES = 64
FEWEST = 8


def lane_count(sch: s_tir.Schedule, info: SBlockInfo) -> int:
    """How many partial results to keep side by side; 1 to reduce one by one.

    The count divides the reduced length. TVM can split unevenly under a condition, but then
    gives wrong results once the block is moved and vectorized.
    """
    body = sch.get(info.block_rv).body
    if not isinstance(body, tirx.BufferStore) or not body.buffer.dtype.startswith("float"):
        return 1
    dims = [it.dom for it in info.iters if it.kind == "R"]
    if not all(isinstance(dim, int) for dim in dims):
        return 1
    length = math.prod(dims[-contiguous_axes(sch, info) :])
    fitting = [n for n in range(FEWEST, LANES + 1) if length % n == 0 and length >= 2 * n]
    # Whole vectors first, then the most lanes.
    return max(fitting, key=lambda n: (n % FEWEST == 0, n), default=1)


def contiguous_axes(sch: s_tir.Schedule, info: SBlockInfo) -> int:
    """How many trailing reduced axes every operand holds without gaps: they fuse into one."""
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    axes = [(var, it.dom) for var, it in zip(variables, info.iters) if it.kind == "R"]
    loads = nodes(block.body.value, ir.TensorLoad)
    for count in range(len(axes), 1, -1):
        inner = axes[-count:]
        position = tirx.const(0, inner[0][0].ty.dtype)
        for var, dim in inner:
            position = position * dim + var
        rest = [var for var in variables if not any(var.same_as(other) for other, _ in inner)]
        places = [
            at_zero(offset(load.source, load.indices), rest)
            for load in loads
            if any(uses(index, var) for index in load.indices for var, _ in inner)
        ]
        if all(is_equal(place, position) for place in places):
            return count
    return 1


def split_lanes(sch: s_tir.Schedule, info: SBlockInfo, lanes: int) -> s_tir.schedule.SBlockRV:
    """Split the reduction into `lanes` partial ones; the block that computes them.

    To be called before anything is moved: rfactor works on blocks at the root only.
    """
    block = info.block_rv
    loops = sch.get_loops(block)
    reduced = [loop for loop, it in zip(loops, info.iters) if it.kind == "R"]
    _, lane = sch.split(sch.fuse(*reduced[-contiguous_axes(sch, info) :]), [None, lanes])
    # The lane becomes the partial buffer's last axis: contiguous.
    return sch.rfactor(lane, len(sch.get(block).writes[0].source.shape))


def vectorize_lanes(sch: s_tir.Schedule, partial: s_tir.schedule.SBlockRV) -> s_tir.schedule.LoopRV:
    """Make the lanes of `split_lanes` one vector operation; the outermost loop along the row."""
    axes = [
        axis
        for axis, it in enumerate(sch.get(partial).iter_vars)
        if it.iter_type == tirx.IterVar.CommReduce
    ]
    steps = [loop_of(sch, partial, axis) for axis in axes]
    lane = loop_of(sch, partial, 0)  # rfactor puts the axis that it made in front.
    sch.reorder(*steps, lane)
    if not nodes(sch.get(partial).body.value, ir.Call):  # A call or branch would be taken apart.
        sch.vectorize(lane)
    return steps[0]


def loop_of(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, axis: int
) -> s_tir.schedule.LoopRV:
    """The loop that is bound to one axis of the block (wherever moves have put it)."""
    value = get_sblockrealize(sch, block).iter_values[axis]
    return next(loop for loop in sch.get_loops(block) if sch.get(loop).loop_var.same_as(value))
