"""Elementwise kernels on the GPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_pointwise, open_kernel
from babytriton.passes.gpu.threads import bind_flat, bind_one
from babytriton.passes.nests import Nest, fuse_nest, pointwise_nests


class Elementwise(ScheduleRule):
    """Takes functions of pointwise blocks alone; gives one thread to each element."""

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        if not all(is_pointwise(sch, info) for info in infos):
            return None
        for nest in pointwise_nests(sch, inline_cheap(sch, infos)):
            spread(sch, nest, target)
        return sch


def spread(sch: s_tir.Schedule, nest: Nest, target: Target) -> None:
    """One thread for each point of the nest."""
    depth = len(nest[0].iters)
    if depth == 0:  # A single number.
        bind_one(sch, sch.get_loops(nest[0].block_rv)[0])
        return
    _, flat = fuse_nest(sch, nest, depth)
    bind_flat(sch, flat, target)
