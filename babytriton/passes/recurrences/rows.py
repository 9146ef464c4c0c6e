"""The rows of a tensor that the steps of a loop write, one in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.recurrences.axes import Threads
from babytriton.passes.recurrences.step import Step, Work, is_one


@dataclass(frozen=True)
class Rows:
    """Rows that follow each other, of which nothing is read before a step has written all of it.

    Attributes:
        axis: of the tensor, along which they lie.
        first: the first of them.
        end: the one after the last.
        writer: the number of the block that writes them.
        reads: how many steps before it was written each row is that blocks read, where it is
            known: by the block's number, and the load.
        before: the row before that of the first step.
    """

    axis: int
    first: ir.Expr
    end: ir.Expr
    writer: int
    reads: Mapping[tuple[int, ir.TensorLoad], int]
    before: ir.Expr

    def others(self, tensor: tirx.Var) -> list[tuple[ir.Expr, ir.Expr]]:
        """From where on which other rows lie, and how many; none of which there surely are none."""
        analyzer, zero = sym.Analyzer(), tirx.const(0, "int64")
        before = analyzer.simplify(self.first)
        behind = analyzer.simplify(tensor.ty.shape[self.axis] - self.end)
        found = [(zero, before), (analyzer.simplify(self.end), behind)]
        return [(start, count) for start, count in found if not analyzer.can_prove(count <= 0)]


@dataclass(frozen=True)
class _Line:
    """A place as a multiple of the step's number, and what is added."""

    slope: int
    offset: ir.Expr


def written_rows(
    step: Step, threads: Threads, low: ir.Expr, high: ir.Expr, memory: tirx.Var
) -> Rows | None:
    """The rows that steps write; None where they may write others, or read what was there before.

    Args:
        step: of the loop.
        threads: has the axes along which threads have one place each.
        low: the number of the first step.
        high: that of the one after the last.
        memory: the tensor.
    """
    writers = [n for n, work in enumerate(step.works) if _stores(work, memory)]
    if len(writers) != 1:
        return None
    [place] = writers
    axis = _row_axis(step.works[place], memory, threads)
    if axis is None:
        return None
    [store] = _stores(step.works[place], memory)
    written = _line(store.indices[axis], step.number)
    if written is None:
        return None
    analyzer, reads = sym.Analyzer(), {}
    for number, work in enumerate(step.works):
        for load in work.loads():
            if not load.source.same_as(memory):
                continue
            read = _line(load.indices[axis], step.number)
            if read is None or read.slope != written.slope:
                return None
            lag = analyzer.simplify((written.offset - read.offset) * written.slope)
            least = 0 if number > place else 1
            if not analyzer.can_prove(lag >= least):
                return None
            if isinstance(lag, tirx.IntImm):
                reads[number, load] = int(lag)
    offset = written.offset
    if written.slope == 1:
        return Rows(axis, low + offset, high + offset, place, reads, low + offset - 1)
    return Rows(axis, offset - high + 1, offset - low + 1, place, reads, offset - low + 1)


def _stores(work: Work, tensor: tirx.Var) -> list[tirx.BufferStore]:
    return [store for store in work.stores() if store.buffer.same_as(tensor)]


def _row_axis(work: Work, memory: tirx.Var, threads: Threads) -> int | None:
    """The axis of which a block writes one place, where it surely writes all of the others."""
    stores = work.stores()
    loops = nodes(work.body, tirx.For)
    if len(stores) != 1 or work.init is not None or nodes(work.body, tirx.IfThenElse):
        return None
    if not all(is_one(loop.extent) for loop in loops):
        return None
    shared = threads.of_tensor(memory)
    left = [
        n
        for n, (index, size) in enumerate(zip(stores[0].indices, memory.ty.shape))
        if n not in shared and not is_one(size) and not _is_all(work, index, size)
    ]
    return left[0] if len(left) == 1 else None


def _is_all(work: Work, index: ir.Expr, size: ir.Expr) -> bool:
    return any(
        index.same_as(axis.var) and tvm_ffi.structural_equal(axis.extent, size)
        for axis in work.axes
    )


def _line(index: ir.Expr, number: tirx.Var) -> _Line | None:
    if nodes(index, ir.TensorLoad):
        return None
    terms: Sequence[ir.Expr] = sym.detect_linear_equation(sym.Analyzer().simplify(index), [number])
    if len(terms) != 2 or not isinstance(terms[0], tirx.IntImm) or int(terms[0]) not in (1, -1):
        return None
    return _Line(int(terms[0]), terms[1])
