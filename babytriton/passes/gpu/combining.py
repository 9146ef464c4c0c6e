"""Partial results of threads that become one."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import WARP, each, guarded, number, only, shared

# What threads of a warp can pass to each other.
SHUFFLED = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32")


def start(block: Block, total: tirx.Var) -> tirx.Stmt:
    """The store that a reduction of a thread begins with."""
    assert block.start is not None
    return tirx.BufferStore(total, block.start, [number(0)])


def adding(
    block: Block, total: tirx.Var, place: ir.Expr | None = None
) -> Callable[..., Statements]:
    """What takes a value into a reduction's result, which is in a register."""
    combine, at = block.combine, number(0) if place is None else place
    assert combine is not None

    def add(value: ir.Expr) -> Statements:
        return [tirx.BufferStore(total, combine(tirx.BufferLoad(total, [at]), value), [at])]

    return add


def across_threads(
    block: Block, total: tirx.Var, threads: int, lane: ir.Expr, allocations: list[tirx.Var]
) -> Statements:
    """Give each of some threads what all of them have together.

    Warps combine their values by shuffles, and leave the results to each other in shared memory.
    Every thread combines these in the same order.

    Args:
        block: the reduction.
        total: a thread's own result, and then that of all.
        threads: how many; a power of two.
        lane: the thread's number.
        allocations: where to add what is allocated.
    """
    add = adding(block, total)
    farthest = min(threads, WARP) // 2
    body = each(
        "halving",
        farthest.bit_length(),
        lambda n: add(_of_lane(only(total), tirx.Cast("int32", number(farthest) >> n))),
    )
    count = threads // WARP
    if count <= 1:
        return body if farthest else []
    warps = shared(count, block.dtype, f"{block.buffer.name}_of_warps")
    allocations.append(warps)
    warp, place = tirx.floordiv(lane, number(WARP)), tirx.floormod(lane, number(WARP))
    put = tirx.BufferStore(warps, only(total), [warp])
    first = tirx.BufferStore(total, tirx.BufferLoad(warps, [number(0)]), [number(0)])
    others = each("warp", count - 1, lambda n: add(tirx.BufferLoad(warps, [n + 1])))
    return [*body, *guarded(tirx.EQ(place, number(0)), [put]), first, *others]


def _of_lane(value: ir.Expr, apart: ir.Expr) -> ir.Expr:
    """The value that the thread has whose number in the warp differs in one bit."""
    mask, size = tirx.const((1 << WARP) - 1, "uint32"), tirx.const(WARP, "int32")
    name = "tirx.tvm_warp_shuffle_xor"
    return tirx.call_intrin(value.ty.dtype, name, mask, value, apart, size, size)
