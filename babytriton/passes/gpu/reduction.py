"""Sums along other axes than the last, on the GPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight import gpu
from tvm.target import Target

from babytriton.passes.blocks import plain_blocks
from babytriton.passes.gpu.threads import all_bound, check_lowering


class Reduction(gpu.Reduction):
    """Takes one sum, pointwise blocks around it; TVM's schedule, in which threads share a sum.

    Stands aside where that leaves a block (a second result) without threads; and for sums of eight
    bits, whose threads TVM does not have wait for each other.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if any("int8" in str(block.writes[0].source.ty.dtype) for block in plain_blocks(func)):
            return None
        sch = super().apply(func, target, tunable)
        if sch is None or not all_bound(sch):
            return None
        check_lowering(sch, target)
        return sch
