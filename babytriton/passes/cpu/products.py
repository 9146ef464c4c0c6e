"""Sums of products by fused multiply-adds, as BLAS libraries compute them: twice as fast.

Only where a product is added to a sum in memory. Elsewhere each operation rounds once, as in
torch: see `roundings.py`.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.passes.intrinsics import rewrite


def fused_multiply_adds(mod: IRModule) -> IRModule:
    """Kernels whose sums of products are accumulated with one rounding a product."""
    return rewrite(mod, tirx.BufferStore, _fused)


def _fused(store: tirx.BufferStore) -> tirx.BufferStore:
    value = store.value
    if not isinstance(value, tirx.Add) or str(value.ty.dtype) not in ("float32", "float64"):
        return store
    total, product = value.a, value.b
    is_sum = (
        isinstance(product, tirx.Mul)
        and isinstance(total, ir.TensorLoad)
        and total.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(total.indices, store.indices)
    )
    if not is_sum:
        return store
    fma = tirx.call_intrin(value.ty, "tirx.fma", product.a, product.b, total)
    return tirx.BufferStore(store.buffer, fma, store.indices)
