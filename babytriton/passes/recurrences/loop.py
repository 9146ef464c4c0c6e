"""One loop of a program as one kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import ir, relax, s_tir, sym, tirx

from babytriton.ops.primfunc import LINES, nodes
from babytriton.passes.bindings import CALL_TIR, is_tensor
from babytriton.passes.drivers import Counted
from babytriton.passes.recurrences.axes import Threads, threads_of
from babytriton.passes.recurrences.in_place import PLACES
from babytriton.passes.recurrences.kernel import Body, Outline, Value, body_of
from babytriton.passes.recurrences.last_rows import kept
from babytriton.passes.recurrences.reading import Scope, step_of, value_of
from babytriton.passes.recurrences.rows import written_rows
from babytriton.passes.recurrences.step import (
    StandsAside,
    Step,
    Work,
    is_one,
    value_at,
    with_values,
)
from babytriton.passes.recurrences.step import replaced as on_other_tensors
from babytriton.passes.uses import Uses

_ELEMENTS = 32
"""Of a tensor that a thread has in registers, at most."""

_ALL_ELEMENTS = 128
"""Of all such tensors of which it has several."""

_WORK = 1024
"""Points that a thread does in a step, at most: a launch for each step has all threads do them."""

_TEXT = 64
"""Nodes of an expression that is computed in the place of a tensor, at most."""

_ROWS = 4
"""Rows for each step that are copied, at most, so that steps may write some of them."""


class _Caller(Scope):
    """The scope of a loop's call: what is not known yet becomes a parameter of the kernel."""

    def tensor(self, expr: relax.Expr) -> tirx.Var:
        if expr not in self.tensors:
            shape = getattr(expr.ty, "shape", None)
            if not isinstance(expr.ty, relax.TensorType) or shape is None:
                raise StandsAside
            name = expr.name if isinstance(expr, relax.Var) else "constant"
            sizes = [self.number(size) for size in shape]
            self.tensors[expr] = tirx.decl_buffer(sizes, str(expr.ty.dtype), name)
        return self.tensors[expr]

    def number(self, expr: ir.Expr) -> ir.Expr:
        for var in nodes(expr, ir.Var):
            if var not in self.numbers:
                self.numbers[var] = tirx.Var(var.name, str(var.ty.dtype))
        return super().number(expr)


@dataclass
class Loop:
    """A loop as one kernel.

    Attributes:
        caller: the scope of its call.
        step: of the loop.
        arguments: for each state, what it is before the first step.
        places: for each, which of the loop's results it is.
        same: by their places, the results that no step changes.
        low: the number of the first step.
        high: that of the one after the last.
        known: values of tensors that are made of no others.
        values: of those that are made of few others.
    """

    caller: _Caller
    step: Step
    arguments: list[relax.Expr]
    places: list[int]
    same: dict[int, relax.Expr]
    low: ir.Expr
    high: ir.Expr
    known: dict[relax.Expr, Work]
    values: dict[relax.Expr, Work]

    @classmethod
    def of(
        cls,
        functions: Mapping[ir.GlobalVar, ir.BaseFunc],
        driver: Counted,
        call: ir.Call,
        uses: Uses,
    ) -> Loop:
        """The loop of a call.

        Raises:
            StandsAside: it is more than one kernel can do.
        """
        caller, function = _Caller(), functions[call.op]
        around = caller.entered(function, call.args)
        low, high = (around.numbers[function.params[n]] for n in (driver.low, driver.high))
        number = tirx.Var("step", "int64")
        around.numbers[function.params[driver.low]] = number
        params = [function.params[n] for n in driver.states if n is not None]
        arguments = [call.args[n] for n in driver.states if n is not None]
        if len(set(params)) < len(driver.states):
            raise StandsAside
        states = []
        for param in params:
            # Two may begin as one tensor.
            given = around.tensors[param]
            state = tirx.decl_buffer(list(given.ty.shape), str(given.ty.dtype), param.name)
            around.tensors[param] = state
            states.append(state)
        step = step_of(functions, driver, around, number, states)
        constant = {n for n, (x, after) in enumerate(zip(states, step.nexts)) if after.same_as(x)}
        unchanged = {states[n]: caller.tensor(arguments[n]) for n in constant}
        step.works = [on_other_tensors(work, unchanged) for work in step.works]
        step.nexts = [unchanged.get(after, after) for after in step.nexts]
        places = [n for n in range(len(states)) if n not in constant]
        step.states = [states[n] for n in places]
        step.nexts = [step.nexts[n] for n in places]
        known, values = _values(functions, caller, call.args, uses)
        return cls(
            caller,
            step,
            [arguments[n] for n in places],
            places,
            {n: arguments[n] for n in constant},
            low,
            high,
            known,
            values,
        )

    def kernel(
        self, wanted: set[int]
    ) -> tuple[tirx.PrimFunc, list[relax.Expr], list[int], dict[int, relax.Expr]]:
        """The kernel.

        Args:
            wanted: the places of the results that are.

        Returns:
            The kernel, its arguments, the places of its results, and those of others by theirs.
        """
        step = self.step
        known = {self.caller.tensor(expr): work for expr, work in self.known.items()}
        step.works = [with_values(work, known) for work in step.works]
        step.tell_numbers(self.low, self.high)
        memories = step.memories()
        step.copy_given()
        written = {store.buffer for work in step.works for store in work.stores()}
        given = {load.source for work in step.works for load in work.loads()}
        given -= {*written, *step.states}
        first = [state for state in step.states if state in memories]
        threads = threads_of(step, given, first)
        _check(step, threads, memories, written)
        self._take_in(threads, given)
        rows_of = partial(written_rows, step, threads, self.low, self.high)
        rows = {state: rows_of(state) for state in step.states if state in memories}
        states = list(zip(step.states, self.arguments, self.places))
        initial = {state: self._initial(argument) for state, argument, _ in states}
        for state, argument, _ in states:
            is_copied = argument not in self.known and argument not in self.values
            if state in memories and rows[state] is None and is_copied:
                self._check_copy(state)
        has_steps = sym.Analyzer().simplify(self.low < self.high)
        initial |= kept(step, threads, list(rows), rows_of, initial, has_steps)
        outputs: dict[int, tirx.Var] = {}
        results: dict[tirx.Var, tirx.Var] = {}
        for state, _, place in states:
            if state in memories:
                outputs[place] = state
            elif place in wanted:
                shape = list(state.ty.shape)
                results[state] = tirx.decl_buffer(shape, str(state.ty.dtype), state.name)
                outputs[place] = results[state]
        if not outputs:
            raise StandsAside
        outline = Outline(step, self.low, self.high, threads, memories, initial, results, rows)
        body = body_of(outline, "steps")
        if _elements(body.statement) > _ALL_ELEMENTS:
            raise StandsAside
        func, arguments = self._function(body.statement, list(outputs.values()))
        numbers = {param: n for n, param in enumerate(func.params)}
        places: list[int] = []
        for state, argument, _ in states:
            before = self.caller.tensors.get(argument)
            if state in memories and before in numbers and _is_own(body, before, threads, state):
                places += numbers[before], numbers[state]
        return func.with_attr(PLACES, places), arguments, list(outputs), self.same

    def _take_in(self, threads: Threads, given: set[tirx.Var]) -> None:
        """Have threads compute what another kernel would, where each number is one thread's."""
        step = self.step
        states = {self.caller.tensor(argument) for argument in self.arguments}
        for expr, value in self.values.items():
            tensor = self.caller.tensor(expr)
            loads = [x for work in step.works for x in work.loads() if x.source.same_as(tensor)]
            if tensor not in given or tensor in states or len(loads) != 1:
                continue
            [load] = loads
            axes = dict(zip(load.indices, range(len(load.indices))))
            shared = {axis: threads.axes[at] for at, axis in axes.items() if at in threads.axes}
            if len(shared) < len(threads.extents):
                continue
            if self.step.number in nodes(load, ir.Var) or nodes(load.indices, ir.TensorLoad):
                # Another one in each step.
                step.works = [with_values(work, {tensor: value}) for work in step.works]
                continue
            for axis, number in shared.items():
                threads.axes[tensor, axis] = threads.axes[value.axes[axis].var] = number
            size = threads.size_of(tensor)
            if size is not None and size <= _ELEMENTS:
                own = tirx.BufferStore(tensor, value.body.value, [x.var for x in value.axes])
                step.works.insert(0, Work(value.axes, None, own))

    def _initial(self, argument: relax.Expr) -> Value:
        work = self.known.get(argument) or self.values.get(argument)
        if work is not None:
            return _as_value(work)
        tensor = self.caller.tensor(argument)
        return lambda at: tirx.BufferLoad(tensor, list(at))

    def _check_copy(self, memory: tirx.Var) -> None:
        """Stand aside where to copy a tensor takes longer than to launch a kernel for each step."""
        count, size = self.high - self.low, memory.ty.shape[0]
        if not isinstance(count, tirx.IntImm) or not isinstance(size, tirx.IntImm):
            raise StandsAside
        if int(size) > _ROWS * int(count):
            raise StandsAside

    def _function(
        self, body: tirx.Stmt, outputs: Sequence[tirx.Var]
    ) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
        """The kernel of a body, and its arguments."""
        read = {load.source for load in nodes(body, ir.TensorLoad)}
        tensors = [(expr, x) for expr, x in self.caller.tensors.items() if x in read]
        sizes = {
            size
            for x in (*(x for _, x in tensors), *outputs)
            for size in x.ty.shape
            if isinstance(size, ir.Var)
        }
        used = {
            *nodes(body, ir.Var),
            *(var for x in outputs for size in x.ty.shape for var in nodes(size, ir.Var)),
        }
        numbers = [
            (var, own)
            for var, own in self.caller.numbers.items()
            if own in used and own not in sizes
        ]
        root = s_tir.SBlock([], [], [], "root", body)
        func = tirx.PrimFunc(
            [*(x for _, x in tensors), *(own for _, own in numbers), *outputs],
            s_tir.SBlockRealize([], tirx.const(True, "bool"), root),
        )
        func = func.with_attr("tirx.noalias", True).with_attr("s_tir", True)
        if self.step.lines:
            func = func.with_attr(LINES, list(self.step.lines))
        arguments = [*(expr for expr, _ in tensors), *(var for var, _ in numbers)]
        return func, arguments


def _values(
    functions: Mapping[ir.GlobalVar, ir.BaseFunc],
    caller: _Caller,
    arguments: Sequence[relax.Expr],
    uses: Uses,
) -> tuple[dict[relax.Expr, Work], dict[relax.Expr, Work]]:
    """What tensors hold, made of no others; and of few others, where nothing else reads them."""
    known, values = {}, {}
    for argument in dict.fromkeys(x for x in arguments if isinstance(x, relax.Var)):
        call, place = uses.values.get(argument), 0
        if isinstance(call, relax.TupleGetItem):
            place = int(call.index)
            call = uses.values.get(call.tuple_value)
        is_kernel = isinstance(call, ir.Call) and call.op == CALL_TIR and len(call.args) == 2
        if not is_kernel or not is_tensor(argument):
            continue
        try:
            work = value_of(functions, caller, argument, call, place)
        except StandsAside:
            continue
        value = work.body.value
        if len(nodes(value, ir.Expr)) > _TEXT:
            continue
        if not nodes(value, ir.TensorLoad):
            known[argument] = work
        elif uses.reads[argument] == 1:
            values[argument] = work
    return known, values


def _as_value(work: Work) -> Value:
    return lambda at: value_at(work, at)


def _check(step: Step, threads: Threads, memories: set[tirx.Var], written: set[tirx.Var]) -> None:
    """Stand aside where threads would do too much, or all of them the same."""

    def has_all(tensor: tirx.Var) -> bool:
        shared = set(threads.of_tensor(tensor).values())
        return all(n in shared or is_one(size) for n, size in enumerate(threads.extents))

    if not all(map(has_all, memories)) or not any(map(has_all, step.states)):
        raise StandsAside
    sizes = [threads.size_of(tensor) for tensor in {*step.states, *written} - memories]
    if any(size is None or size > _ELEMENTS for size in sizes):
        raise StandsAside
    works = [threads.work_of(work) for work in step.works]
    if any(work is None for work in works) or sum(filter(None, works)) > _WORK:
        raise StandsAside


def _is_own(body: Body, before: tirx.Var, threads: Threads, memory: tirx.Var) -> bool:
    """Whether threads read only their own elements of a tensor, and only before the first step.

    Args:
        body: of the kernel.
        before: the tensor.
        threads: that share the work.
        memory: the state that begins as the tensor.
    """

    def loads(part: tirx.Stmt) -> list[ir.TensorLoad]:
        return [load for load in nodes(part, ir.TensorLoad) if load.source.same_as(before)]

    return not loads(body.steps) and all(
        load.indices[axis].same_as(body.places[number])
        for load in loads(body.statement)
        for axis, number in threads.of_tensor(memory).items()
    )


def _elements(body: tirx.Stmt) -> int:
    """How many numbers a thread has in arrays."""
    arrays = [x for block in nodes(body, s_tir.SBlock) for x in block.alloc_buffers]
    sizes = [math.prod(map(int, x.ty.shape)) for x in arrays]
    return sum(size for size in sizes if size > 1)
