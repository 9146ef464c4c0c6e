"""The row that the step before has written, kept in a register for the next one to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.recurrences.axes import Threads
from babytriton.passes.recurrences.kernel import Value
from babytriton.passes.recurrences.rows import Rows
from babytriton.passes.recurrences.step import Step, Work


def kept(
    step: Step,
    threads: Threads,
    memories: Sequence[tirx.Var],
    rows_of: Callable[[tirx.Var], Rows | None],
    initial: Mapping[tirx.Var, Value],
    has_steps: ir.Expr,
) -> dict[tirx.Var, Value]:
    """Add a state for each memory of which a step reads what the one before has written.

    A thread would wait for what it has just written to come back from memory.

    Args:
        step: of the loop; gets the states.
        threads: get the axes of these.
        memories: that steps write rows of.
        rows_of: those that they write of one, as blocks of the step now do.
        initial: what memories hold before the first step.
        has_steps: whether there is a step.

    Returns:
        What the states are before the first step.
    """
    found: dict[tirx.Var, Value] = {}
    for memory in memories:
        of_memory = rows_of(memory)
        if of_memory is None:
            continue
        last = {load for (_, load), lag in of_memory.reads.items() if lag == 1}
        if not last or threads.own_axes(memory) != [of_memory.axis]:
            continue
        state = _row(memory, of_memory.axis, "last_row")
        after = _row(memory, of_memory.axis, "row")
        for n, axis in enumerate(_others(range(len(memory.ty.shape)), of_memory.axis)):
            if (memory, axis) in threads.axes:
                number = threads.axes[memory, axis]
                threads.axes[state, n] = threads.axes[after, n] = number
        step.works = _through_rows(step.works, of_memory, last, state, after)
        step.states.append(state)
        step.nexts.append(after)
        found[state] = _before(initial[memory], of_memory, has_steps, str(memory.ty.dtype))
    return found


def _others(items: Sequence[ir.Expr] | range, axis: int) -> list[ir.Expr]:
    return [item for n, item in enumerate(items) if n != axis]


def _row(memory: tirx.Var, axis: int, name: str) -> tirx.Var:
    return tirx.decl_buffer(_others(memory.ty.shape, axis), str(memory.ty.dtype), name)


def _through_rows(
    works: Sequence[Work],
    rows: Rows,
    last: set[ir.TensorLoad],
    state: tirx.Var,
    after: tirx.Var,
) -> list[Work]:
    """The blocks, which read the row of the step before from a state and leave the next one."""

    def of_state(load: ir.TensorLoad) -> ir.Expr:
        if load not in last:
            return load
        return tirx.BufferLoad(state, _others(load.indices, rows.axis))

    found = []
    for number, work in enumerate(works):

        def changed(part: tirx.Stmt | None) -> tirx.Stmt | None:
            return part and tvm_ffi.structural_map(part, (ir.TensorLoad, of_state))

        work = Work(work.axes, changed(work.init), changed(work.body))
        if number == rows.writer:
            [store] = work.stores()
            index = _others(store.indices, rows.axis)
            found.append(Work(work.axes, None, tirx.BufferStore(after, store.value, index)))
            value = tirx.BufferLoad(after, index)
            written = tirx.BufferStore(store.buffer, value, list(store.indices))
            work = Work(work.axes, None, written)
        found.append(work)
    return found


def _before(value: Value, rows: Rows, has_steps: ir.Expr, dtype: str) -> Value:
    def row(at: Sequence[ir.Expr]) -> ir.Expr:
        index = [*at[: rows.axis], rows.before, *at[rows.axis :]]
        if isinstance(has_steps, tirx.IntImm):
            return value(index)
        return tirx.if_then_else(has_steps, value(index), tirx.const(0, dtype))

    return row
