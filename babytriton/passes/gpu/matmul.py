"""Matrix products on the GPU."""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight import gpu
from tvm.target import Target

from babytriton.passes.blocks import open_kernel
from babytriton.passes.contractions import has_few_rows
from babytriton.passes.gpu.threads import all_bound, check_lowering
from babytriton.passes.statements import with_parts

# The newest architecture for which TVM does not reach for tensor cores. Its tensor-core schedule
# accumulates float16 products in float16, and importing its intrinsics takes 15 seconds.
NO_TENSOR_CORES = "sm_61"


class Matmul(gpu.Matmul):
    """Takes matrix products, also batched, padded to whole tiles; TVM's shared-memory tiling.

    Stands aside for an operand of a few rows, such as a vector: that is no more work than reading
    the other one, which sums along rows or columns do best. Also where TVM's schedule leaves a
    block (a second result, a reduction after) without threads, and for symbolic sizes: of those
    TVM's vector loads cannot be built.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if not all(
            isinstance(n, tirx.IntImm) for x in func.params for n in getattr(x, "shape", ())
        ):
            return None
        kernel = open_kernel(func)
        if kernel is None or any(has_few_rows(kernel[0].get(x.block_rv)) for x in kernel[1]):
            return None
        # It loads in vectors, and TVM prints a vector of bools as one of another type.
        if any(str(getattr(param, "dtype", "")) == "bool" for param in func.params):
            return None
        plain = dict(target.export(), arch=NO_TENSOR_CORES)
        sch = super().apply(func, Target(plain), tunable)
        if sch is None or not all_bound(sch):
            return None
        if any(str(getattr(param, "dtype", "")) == "int64" for param in func.params):
            sch = _number_by_number(sch)
        check_lowering(sch, target)
        return sch


def _number_by_number(sch: s_tir.Schedule) -> s_tir.Schedule:
    """The kernel without vectors: TVM's look for races cannot read where those of int64 lie."""

    def plain(loop: tirx.For) -> tirx.For:
        is_vector = loop.kind == tirx.ForKind.VECTORIZED
        return with_parts(loop, loop.body, kind=tirx.ForKind.UNROLLED) if is_vector else loop

    func = sch.mod["main"]
    return s_tir.Schedule(func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, plain))))
