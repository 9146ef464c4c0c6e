"""Blocks to the loops and the memory that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import IRModule, s_tir, tirx

from babytriton.ops.primfunc import with_kernels

_PLACED = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
    ]
)
"""Memory within the loops that it is for."""

_COMPACTED = s_tir.transform.CompactBufferAllocation()
"""No more memory than its loops use."""

_LOWERED = tvm.transform.Sequential(
    [s_tir.transform.LowerMatchBuffer(), s_tir.transform.LowerOpaqueBlock()]
)


def flattened(mod: IRModule) -> IRModule:
    """Scheduled kernels -> plain loops."""
    return _LOWERED(with_kernels(_PLACED(mod), _compacted))


def _compacted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with as much memory in its loops as these use.

    What lies outside of all of them holds whole tensors, as one of them writes these. TVM would
    look through each condition for less, and fails at some: it takes divisors for zeros.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):  # loops that the user has written
        return _COMPACTED(IRModule({"main": func}))["main"]
    whole = func.body.block.alloc_buffers
    found = _COMPACTED(IRModule({"main": _with_memory(func, [])}))["main"]
    return _with_memory(found, whole)


def _with_memory(func: tirx.PrimFunc, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """The kernel with other memory outside of its loops."""
    root = func.body.block
    parts = (root.iter_vars, root.reads, root.writes, root.name_hint, root.body, root.init)
    block = s_tir.SBlock(*parts, list(buffers), root.match_buffers, root.annotations)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))
