"""Reductions of windows on the GPU: pooling, and other sums of few neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import (
    inline_cheap,
    is_one,
    is_pointwise,
    open_kernel,
    results,
    same_extents,
    uses,
)
from babytriton.passes.gpu.combining import adding, start
from babytriton.passes.gpu.extents import parts, position
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.threads import thread_count
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    below,
    each,
    guarded,
    launched,
    number,
    only,
    store,
    written_out,
)
from babytriton.passes.intrinsics import function_name
from babytriton.passes.nests import offset

MOST, LONGEST = 256, 16
"""Elements of a window, and of those that lie side by side: threads next to each other would read
far from each other, while all of them read what lies together where they share a window."""

_NAMES = (*(f"axis_{n}" for n in range(5)), "layer", "row", "column")

UNROLLED = 32
"""Elements of a window, at most, of which a thread has several under way at once."""


class Windows(ScheduleRule):
    """Takes one reduction of windows that lie beside or over each other, and what follows it.

    A thread goes through one window, and computes from what it finds in a register.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos)
        reduction, *after = infos
        if not _is_of_windows(sch, reduction):
            return None
        points = [it.dom for it in reduction.iters if it.kind == "S"]
        for info in after:
            if not is_pointwise(sch, info) or not same_extents(info.dom(), points):
                return None
        program = Program.of(sch, infos, [extent for extent in points if not is_one(extent)])
        if program is None:
            return None
        kernel = WindowWriter(program, thread_count(target)).kernel()
        return written_out(sch.mod["main"], [kernel])


def _is_of_windows(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    """Whether each result is of few elements, at places that its own moves."""
    if not info.is_reduction() or len(results(sch, info)) > 1:
        return False
    sizes = [it.dom for it in info.iters if it.kind != "S"]
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > MOST:
        return False
    axes = sch.get(info.block_rv).iter_vars
    own = [axis.var for axis in axes if axis.iter_type == tirx.IterVar.DataPar]
    others = [axis.var for axis in axes if axis.iter_type != tirx.IterVar.DataPar]
    extents = dict(zip(others, sizes))
    found = False
    for load in nodes(sch.get(info.block_rv).body, ir.TensorLoad):
        for place, index in enumerate(reversed(load.indices)):
            within = [extents[var] for var in others if uses(index, var)]
            found |= bool(within) and any(uses(index, var) for var in own)
            if place == 0 and math.prod(within) > LONGEST:
                return False
    return found


@dataclass(frozen=True)
class WindowWriter:
    """Writes the kernel out.

    Attributes:
        program: what is computed; its rows are the windows.
        threads: of a block.
    """

    program: Program
    threads: int

    def kernel(self) -> tirx.Stmt:
        """What each thread does."""
        blocks = parts(self.program.row_count, self.threads)
        return launched({"blockIdx.x": blocks, "threadIdx.x": self.threads}, self._thread)

    def _thread(self, ids: dict[str, ir.Expr]) -> Statements:
        def window() -> ir.Expr:
            return ids["blockIdx.x"] * number(self.threads) + ids["threadIdx.x"]

        writer = Writer(self.program, 1, 1)
        writer.row = window
        reduction, *others = self.program.blocks
        total = writer.allocate(1, reduction.dtype, f"{reduction.buffer.name}_of_window")
        writer.computed(reduction, total)
        body = [start(reduction, total), *self._elements(writer, reduction, total)]
        body += self._result(writer, reduction, total)
        for block in others:
            value, computed = writer.value_of_row(block)
            body += [*computed, *self._result(writer, block, value)]
        is_there = below(window(), self.program.row_count, self.threads)
        return [*map(tirx.AllocBuffer, writer.allocations), *guarded(is_there, body)]

    def _elements(self, writer: Writer, block: Block, total: tirx.Var) -> Statements:
        """What takes in the elements of a window."""
        extents = [extent for _, extent in self.program.elements]
        is_short = math.prod(map(int, extents)) <= UNROLLED
        kind = tirx.ForKind.UNROLLED if is_short else tirx.ForKind.SERIAL
        test, block = _padding(block)

        def along(place: Sequence[ir.Expr]) -> Statements:
            if len(place) < len(extents):
                name = _NAMES[len(place) - len(extents)]
                return each(name, extents[len(place)], lambda n: along([*place, n]), kind)
            vector = Vector(position(place, extents), number(0), 1)
            taken = writer.elements(block, vector, lambda _, x: adding(block, total)(x))
            is_inside = None if test is None else writer.at(test, vector.first)
            return guarded(is_inside, taken)

        return along([])

    def _result(self, writer: Writer, block: Block, value: tirx.Var) -> Statements:
        """The store of what a window has, if that is a result."""
        if not block.is_result:
            return []
        place = writer.at(offset(block.buffer, list(block.store.indices)), None)
        return [store(block.buffer, only(value), place)]


def _padding(block: Block) -> tuple[ir.Expr | None, Block]:
    """Where the elements of a block's windows are none of the padding; and the block of these."""
    value = block.value
    if isinstance(value, ir.Call) and function_name(value) == "if_then_else":
        test, inside, outside = value.args
        if tvm_ffi.structural_equal(outside, block.start):
            return test, block.with_value(inside)
    return None, block
