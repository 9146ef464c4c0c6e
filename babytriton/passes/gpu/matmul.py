"""Matrix products on the GPU."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight import gpu
from tvm.target import Target

from babytriton.passes.gpu.threads import all_bound, check_lowering

# The newest architecture for which TVM does not reach for tensor cores. Its tensor-core schedule
# accumulates float16 products in float16, and importing its intrinsics takes 15 seconds.
NO_TENSOR_CORES = "sm_61"


class Matmul(gpu.Matmul):
    """Takes matrix products, also batched, padded to whole tiles; TVM's shared-memory tiling.

    Stands aside where that leaves a block (a second result, a reduction after) without threads,
    and for symbolic sizes: of those TVM's vector loads cannot be built.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if not all(
            isinstance(n, tirx.IntImm) for x in func.params for n in getattr(x, "shape", ())
        ):
            return None
        # It loads in vectors, and TVM prints a vector of bools as one of another type.
        if any(str(getattr(param, "dtype", "")) == "bool" for param in func.params):
            return None
        plain = dict(target.export(), arch=NO_TENSOR_CORES)
        sch = super().apply(func, Target(plain), tunable)
        if sch is None or not all_bound(sch):
            return None
        check_lowering(sch, target)
        return sch
