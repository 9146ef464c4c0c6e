"""Sums along other axes than the last, on the GPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight import gpu
from tvm.target import Target

from babytriton.passes.gpu.threads import all_bound, check_lowering


class Reduction(gpu.Reduction):
    """Takes one sum, pointwise blocks around it; TVM's schedule, in which threads share a sum.

    Stands aside where that leaves a block (a second result) without threads.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        sch = super().apply(func, target, tunable)
        if sch is None or not all_bound(sch):
            return None
        check_lowering(sch, target)
        return sch
