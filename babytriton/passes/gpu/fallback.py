"""What no other GPU rule takes: always runs, at whatever speed."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_pointwise, open_kernel
from babytriton.passes.gpu.elementwise import spread
from babytriton.passes.gpu.threads import (
    bind_flat,
    bind_one,
    launches_itself,
    threads_of_long_work,
)
from babytriton.passes.nests import pointwise_nests
from babytriton.passes.unchecked_schedules import schedule_of


class Fallback(ScheduleRule):
    """Takes every function with blocks: a thread for each spatial point, all else serial in it.

    TVM's own fallback inlines every value into each of its reads, so that a chain of squares
    grows without bound, and leaves blocks that are not in plain loops without threads.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return serial(func)
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        for nest in pointwise_nests(sch, [info for info in infos if is_pointwise(sch, info)]):
            spread(sch, nest, target)
        for info in infos:
            if not is_pointwise(sch, info) and not launches_itself(sch, info.block_rv):
                thread_each_point(sch, info, target)
        return sch


def thread_each_point(sch: s_tir.Schedule, info: SBlockInfo, target: Target) -> None:
    """A thread for each spatial point of a reduction, or of a block with loops inside."""
    block = info.block_rv
    loops = sch.get_loops(block)
    points = [loop for loop, it in zip(loops, info.iters) if it.kind == "S"]
    others = [loop for loop, it in zip(loops, info.iters) if it.kind != "S"]
    if not points:
        bind_one(sch, loops[0])
        return
    sch.reorder(*points, *others)
    flat = sch.fuse(*points)
    bind_flat(sch, flat, target, threads_of_long_work(sch.get(flat).extent, target))


def serial(func: tirx.PrimFunc) -> s_tir.Schedule | None:
    """The whole function as it stands, on one thread; None if it has no blocks at all."""
    sch = schedule_of(func)
    root = sch.get_sblock(func.body.block.name_hint)
    bound: list[tirx.Var] = []
    for block in sch.get_child_blocks(root):
        if launches_itself(sch, block):
            continue
        loops = sch.get_loops(block)
        outermost = loops[0] if loops else sch.add_unit_loop(block)
        variable = sch.get(outermost).loop_var
        if any(variable.same_as(other) for other in bound):  # Shared with an earlier block.
            continue
        bind_one(sch, outermost)
        bound.append(variable)
    return sch
