"""Whatever no other CPU rule takes."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_at_least, open_kernel
from babytriton.passes.cpu.elementwise import PARALLEL


class Parallel(ScheduleRule):
    """Takes any function of blocks in plain loops; spreads each block's outer spatial loops.

    Among them: scans (a serial loop inside a block a row), pooling, argmax, gathers, and every
    shape that the particular rules left.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        for info in inline_cheap(sch, infos):
            spread_outer(sch, info)
        return sch


def spread_outer(sch: s_tir.Schedule, info: SBlockInfo) -> None:
    """Run the leading spatial loops of one block over the machine's threads."""
    loops = sch.get_loops(info.block_rv)
    kinds = info.dom_kind()
    leading = len(kinds) - len(kinds.lstrip("S"))
    # The innermost loop stays whole: it is what LLVM vectorizes.
    outer = loops[: min(leading, max(len(loops) - 1, 1))]
    if outer and (is_at_least(info, PARALLEL) or has_loop_inside(sch, info)):
        sch.parallel(sch.fuse(*outer))


def has_loop_inside(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether one iteration of the block is itself a loop, such as a scan along a row."""
    return isinstance(sch.get(info.block_rv).body, tirx.For | tirx.SeqStmt)
