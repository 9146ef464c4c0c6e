"""Threads for loops: what every GPU rule uses, and the check that no block was left without."""

from __future__ import annotations

import tvm
from tvm import ir, s_tir, tirx
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.gpu.writing import WARP

# Threads of a block where a kernel needs none in particular: eight warps fill any GPU.
THREADS = 256

MULTIPROCESSORS = 128
"""About as many as large GPUs have: 108 an A100, 132 an H100."""


def thread_count(target: Target) -> int:
    """Threads of a block: THREADS, or the target's limit if that is less."""
    return min(THREADS, most_threads(target))


def most_threads(target: Target) -> int:
    """Threads of a block at most: TVM has a name of its own for WebGPU's."""
    names = ("max_threads_per_block", "max_num_threads")
    return next((int(target.attrs[name]) for name in names if name in target.attrs), THREADS)


def threads_of_long_work(points: ir.Expr, target: Target) -> int:
    """Threads of a block where each works for long: fewer, down to a warp, for blocks everywhere.

    Args:
        points: that there is a thread for.
        target: the GPU.
    """
    threads = thread_count(target)
    if isinstance(points, tirx.IntImm):
        while threads > WARP and int(points) < threads * MULTIPROCESSORS:
            threads //= 2
    return threads


def bind_flat(
    sch: s_tir.Schedule,
    loop: s_tir.schedule.LoopRV,
    target: Target,
    threads: int | None = None,
) -> s_tir.schedule.LoopRV:
    """One thread for each iteration of the loop; that of the threads.

    Args:
        sch: has the loop.
        loop: the loop.
        target: the GPU.
        threads: of a block; as many as a kernel has that needs none in particular if not given.
    """
    extent = sch.get(loop).extent
    threads = threads or thread_count(target)
    if isinstance(extent, tirx.IntImm):  # A block as wide as the loop need not test for its end.
        threads = min(threads, max(1, int(extent)))
    block, thread = sch.split(loop, [None, threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def bind_one(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV) -> None:
    """A single thread around the loop."""
    thread = sch.add_unit_loop(loop)
    block = sch.add_unit_loop(thread)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def all_bound(sch: s_tir.Schedule) -> bool:
    """Whether every block runs under both a block and a thread index.

    TVM says nothing of one that does not: its loops would run on the host, on device memory.
    """
    root = sch.get_sblock(sch.mod["main"].body.block.name_hint)
    return all(
        binds(sch, block, "blockIdx") and binds(sch, block, "threadIdx")
        for block in sch.get_child_blocks(root)
    )


LOWERING = (
    s_tir.transform.CanonicalizeLoop(),
    s_tir.transform.LowerCrossThreadReduction(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LiftThreadBinding(),
    s_tir.transform.CompactBufferAllocation(),
    s_tir.transform.UnifyThreadBinding(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
)
"""The first of the passes that a scheduled kernel goes through when it is built."""


def check_lowering(sch: s_tir.Schedule, target: Target) -> None:
    """Raise TVM's error now, if building the kernel will fail.

    TVM refuses some ways of sharing a reduction among threads, and cannot flatten some buffers
    that it has made as small as a single element.
    """
    tvm.transform.Sequential([tirx.transform.BindTarget(target), *LOWERING])(sch.mod)


def binds(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, axis: str) -> bool:
    bindings = [sch.get(loop).thread_binding for loop in sch.get_loops(block)]
    return any(b is not None and str(b.thread_tag).startswith(axis) for b in bindings)


def launches_itself(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether the block's own body opens threads (TVM's sorts and scans for CUDA do)."""
    body = sch.get(block).body
    attributes = [node.attr_key for node in nodes(body, tirx.AttrStmt)]
    loops = [node.kind for node in nodes(body, tirx.For)]
    return "thread_extent" in attributes or tirx.ForKind.THREAD_BINDING in loops
