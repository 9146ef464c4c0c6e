"""The kernel that a loop becomes: each thread runs all steps on its own elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.names import of_number, users_name
from babytriton.passes.recurrences.axes import Threads
from babytriton.passes.recurrences.rows import Rows
from babytriton.passes.recurrences.step import Axis, Step, Work, is_one, with_values
from babytriton.passes.statements import at_step, sequence

Value = Callable[[Sequence[ir.Expr]], ir.Expr]
"""What a tensor holds at an index."""

_ZERO = tirx.const(0, "int64")

_SHORT = (1 << 31) - 1
"""The largest number of a step that has 32 bits."""

_TRIVIAL = 3
"""Nodes of an expression that is as well computed again where it is read, besides its indices."""

_SHORT_TEXT = 8
"""The same of one that reads no tensor: compilers compute it once."""


@dataclass(frozen=True)
class Outline:
    """What a kernel is to do.

    Attributes:
        step: of the loop.
        low: the number of the first step.
        high: that of the one after the last.
        threads: that share the work.
        memories: the states that steps write parts of; each is a result of the kernel.
        initial: what each state holds before the first step.
        results: for those of the other states that are wanted, the tensor for what they are last.
        rows: of a memory, those that need no value from before.
    """

    step: Step
    low: ir.Expr
    high: ir.Expr
    threads: Threads
    memories: set[tirx.Var]
    initial: Mapping[tirx.Var, Value]
    results: Mapping[tirx.Var, tirx.Var]
    rows: Mapping[tirx.Var, Rows | None]


@dataclass(frozen=True)
class Body:
    """What a kernel does.

    Attributes:
        statement: all of it, a block for each thread.
        places: what the block calls the thread's places on the axes that are shared.
        steps: the loop over the steps in it.
    """

    statement: tirx.Stmt
    places: Sequence[tirx.Var]
    steps: tirx.For


def body_of(outline: Outline, name: str) -> Body:
    """The body of a kernel, whose block has a name."""
    return _Writer(outline).body(name)


class _Writer:
    """Writes the body of the kernel."""

    def __init__(self, outline: Outline) -> None:
        self._outline, self._threads, self._step = outline, outline.threads, outline.step
        self._places = [tirx.Var(f"i{n}", "int64") for n in range(len(outline.threads.extents))]
        self._locals: dict[tirx.Var, tirx.Var] = {}
        self._numbers: dict[tirx.Var, tirx.Var] = {}
        self._written = {x for work in outline.step.works for x in _written(work)}

    def body(self, name: str) -> Body:
        """The block in loops over the threads."""
        before, loop, results = self._parts()
        body = sequence([*before, loop, *results])
        axes, outer = [], []
        for place, extent in zip(self._places, self._threads.extents):
            axis = ir.Range(_ZERO, extent)
            axes.append(tirx.IterVar(axis, place, tirx.IterVar.DataPar))
            outer.append(tirx.Var(f"{place.name}_0", "int64"))
        written = dict.fromkeys(store.buffer for store in nodes(body, tirx.BufferStore))
        read = dict.fromkeys(load.source for load in nodes(body, ir.TensorLoad))
        own = [x for x in written if x.scope() == "local"]
        writes = [self._region(x) for x in written if x not in own]
        reads = [self._region(x) for x in read if x not in written]
        block = s_tir.SBlock(axes, reads, writes, name, body, None, own)
        found: tirx.Stmt = s_tir.SBlockRealize(outer, tirx.const(True, "bool"), block)
        for var, extent in reversed(list(zip(outer, self._threads.extents))):
            found = tirx.For(var, _ZERO, extent, tirx.ForKind.SERIAL, found)
        return Body(found, self._places, loop)

    def _region(self, tensor: tirx.Var) -> tirx.BufferRegion:
        one = tirx.const(1, "int64")
        shared = self._threads.of_tensor(tensor)
        return tirx.BufferRegion(
            tensor,
            [
                ir.Range.from_min_extent(self._places[shared[n]], one)
                if n in shared
                else ir.Range(_ZERO, size)
                for n, size in enumerate(tensor.ty.shape)
            ],
        )

    def _parts(self) -> tuple[list[tirx.Stmt], tirx.For, list[tirx.Stmt]]:
        """What a thread does before the steps, the loop over these, and what it does after them."""
        step, memories = self._step, self._outline.memories
        works = self._inlined(step.works)
        changing = self._changing(works)
        before = [work for work in works if not changing & _written(work)]
        each = [work for work in works if changing & _written(work)]
        carried = [
            (state, after) for state, after in zip(step.states, step.nexts) if state not in memories
        ]
        for state, _ in carried:
            self._locals[state] = self._local(state, str(state.name))
        self._place(carried, each)
        first = [stmt for x in step.states if x in memories for stmt in self._begun(x)]
        first += [self._initial(state) for state, _ in carried]
        first += [self._nest(work) for work in before]
        steps = [self._nest(work) for work in each]
        loop = self._loop(sequence([*steps, *self._handed_on(carried)]))
        results = [self._result(state) for state, _ in carried if state in self._outline.results]
        return first, loop, results

    def _loop(self, body: tirx.Stmt) -> tirx.For:
        """The loop over the steps."""
        number, low, high = self._step.number, self._outline.low, self._outline.high
        if isinstance(low, tirx.IntImm) and isinstance(high, tirx.IntImm) and int(high) <= _SHORT:
            short = tirx.Var(number.name, "int32")
            body = at_step(body, number, tirx.Cast("int64", short))
            bounds = [tirx.const(int(x), "int32") for x in (low, high - low)]
            return tirx.For(short, *bounds, tirx.ForKind.SERIAL, body)
        return tirx.For(number, low, high - low, tirx.ForKind.SERIAL, body)

    # ------------------------------------------------------------ values

    def _inlined(self, works: Sequence[Work]) -> list[Work]:
        """The works without values that are as well computed where they are read."""
        writers = Counter(tensor for work in works for tensor in _written(work))
        readers: dict[tirx.Var, list[int]] = {}
        for number, work in enumerate(works):
            for load in work.loads():
                readers.setdefault(load.source, []).append(number)
        changing = self._changing(works)
        kept = {*self._step.states, *self._step.nexts, *self._outline.memories}
        values: dict[tirx.Var, Work] = {}
        found = []
        for number, work in enumerate(works):
            work = with_values(work, values)
            store = work.at_points()
            if store is not None and store.buffer not in kept and writers[store.buffer] == 1:
                read = readers.get(store.buffer, [])
                if self._is_inlined(work, store, works[number:], [n - number for n in read]):
                    is_again = any(changing & _written(works[n]) for n in read)
                    if store.buffer in changing or _is_cheap(store.value) or not is_again:
                        values[store.buffer] = work
                        continue
            found.append(work)
        return found

    def _is_inlined(
        self,
        work: Work,
        store: tirx.BufferStore,
        later: Sequence[Work],
        readers: Sequence[int],
    ) -> bool:
        """Whether a block's value is as well computed where it is read.

        Args:
            work: the block.
            store: of its value.
            later: the blocks from this one on.
            readers: the numbers of those of them that read it, once for each time.
        """
        memories = {load.source for load in nodes(store.value, ir.TensorLoad)}
        memories &= self._outline.memories
        between = later[: max(readers, default=0) + 1]
        if any(memories & _written(other) for other in between):
            return False
        if _is_cheap(store.value):
            return True
        own = self._threads.work_of(work)
        if users_name(store.buffer) and self._threads.size_of(store.buffer) == 1:
            return False  # The user's name is one for whom the kernel is read by.
        if len(readers) > 1:
            return False
        wider = any((self._threads.work_of(later[n]) or 0) > (own or 0) for n in readers)
        return not (wider and nodes(store.value, ir.Call))

    def _changing(self, works: Sequence[Work]) -> set[tirx.Var]:
        """The tensors that are not the same in each step."""
        found = {*self._step.states, *self._step.nexts}
        count = -1
        while count < (count := len(found)):
            for work in works:
                numbers = [var for part in work.parts for var in nodes(part, ir.Var)]
                is_changing = self._step.number in numbers or any(x in found for x in numbers)
                if is_changing:
                    found |= _written(work)
        return found

    # ------------------------------------------------------------ states

    def _place(self, carried: Sequence[tuple[tirx.Var, tirx.Var]], works: Sequence[Work]) -> None:
        """Put what states become where these are, if nothing reads them any more by then."""
        states = {state for state, _ in carried}
        for state, after in carried:
            is_new = after not in states and after not in self._locals
            if is_new and self._is_last(state, after, works, carried):
                self._locals[after] = self._locals[state]

    def _handed_on(self, carried: Sequence[tuple[tirx.Var, tirx.Var]]) -> list[tirx.Stmt]:
        """What hands the states on to the next step, after all work of one."""
        staged: list[tirx.Stmt] = []
        moves: list[tirx.Stmt] = []
        states = {state for state, _ in carried}
        for state, after in carried:
            own = self._locals[state]
            if after in self._numbers:
                moves.append(tirx.BufferStore(own, self._numbers[after], [_ZERO]))
                continue
            source = self._local_of(after)
            if source.same_as(own):
                continue
            if after in states:
                # What another one was in this step.
                if not self._threads.own_axes(after):
                    number = of_number(f"{state.name}_next", str(state.ty.dtype))
                    staged.append(tirx.Bind(number, tirx.BufferLoad(source, [_ZERO])))
                    moves.append(tirx.BufferStore(own, number, [_ZERO]))
                    continue
                last = self._local(after, f"{state.name}_next")
                staged.append(self._copied(after, last, source))
                source = last
            moves.append(self._copied(state, own, source))
        return [*staged, *moves]

    def _is_last(
        self,
        state: tirx.Var,
        after: tirx.Var,
        works: Sequence[Work],
        carried: Sequence[tuple[tirx.Var, tirx.Var]],
    ) -> bool:
        """Whether nothing needs a state once the next one is there."""
        if any(state.same_as(other) for _, other in carried):
            return False
        writers = [n for n, work in enumerate(works) if after in _written(work)]
        if len(writers) != 1:
            return False
        store = works[writers[0]].at_points()
        readers = [
            (n, load)
            for n, work in enumerate(works)
            for load in work.loads()
            if load.source.same_as(state)
        ]
        return store is not None and all(
            n < writers[0] or (n == writers[0] and self._are_at_once(load, store))
            for n, load in readers
        )

    def _are_at_once(self, load: ir.TensorLoad, store: tirx.BufferStore) -> bool:
        """Whether an element is read where it is written."""
        axes = self._threads.own_axes(store.buffer)
        return all(tvm_ffi.structural_equal(load.indices[n], store.indices[n]) for n in axes)

    def _initial(self, state: tirx.Var) -> tirx.Stmt:
        """What a state is before the first step."""
        value = self._outline.initial[state]
        own = self._locals[state]
        return self._over(
            state, lambda at: tirx.BufferStore(own, value(at), self._own_index(state, at))
        )

    def _begun(self, memory: tirx.Var) -> list[tirx.Stmt]:
        """What a memory holds before the first step, where a step does not write it first."""
        value, rows = self._outline.initial[memory], self._outline.rows[memory]
        if rows is None:
            return [self._over(memory, lambda at: tirx.BufferStore(memory, value(at), list(at)))]
        return [
            self._over(
                memory,
                lambda at: tirx.BufferStore(memory, value(at), list(at)),
                {rows.axis: part},
            )
            for part in rows.others(memory)
        ]

    def _result(self, state: tirx.Var) -> tirx.Stmt:
        """What is left of a state: stored by one of the threads that have the same."""
        out, own = self._outline.results[state], self._locals[state]
        stored = self._over(
            state,
            lambda at: tirx.BufferStore(
                out, tirx.BufferLoad(own, self._own_index(state, at)), list(at)
            ),
        )
        shared = set(self._threads.of_tensor(state).values())
        for number, place in enumerate(self._places):
            if number not in shared:
                stored = tirx.IfThenElse(tirx.EQ(place, _ZERO), stored, None)
        return stored

    # ------------------------------------------------------------ statements

    def _over(
        self,
        tensor: tirx.Var,
        store: Callable[[list[ir.Expr]], tirx.Stmt],
        parts: Mapping[int, tuple[ir.Expr, ir.Expr]] | None = None,
    ) -> tirx.Stmt:
        """A statement for each element of a tensor that a thread has.

        Args:
            tensor: the tensor.
            store: makes the statement for an index.
            parts: by axes that a thread goes along a part of, where that begins and how long it is.
        """
        shared = self._threads.of_tensor(tensor)
        at: list[ir.Expr] = []
        loops: list[tuple[tirx.Var, ir.Expr]] = []
        for n, size in enumerate(tensor.ty.shape):
            start, count = (parts or {}).get(n, (_ZERO, size))
            if n in shared:
                at.append(self._places[shared[n]])
            elif is_one(count):
                at.append(start)
            else:
                loops.append((tirx.Var(f"j{n}", "int64"), count))
                at.append(loops[-1][0] + start)
        found = store(at)
        for var, count in reversed(loops):
            found = tirx.For(var, _ZERO, count, tirx.ForKind.SERIAL, found)
        return found

    def _copied(self, model: tirx.Var, to: tirx.Var, source: tirx.Var) -> tirx.Stmt:
        """A copy of one local to another, both for a tensor of the same shape."""

        def store(at: Sequence[ir.Expr]) -> tirx.Stmt:
            index = self._own_index(model, at)
            return tirx.BufferStore(to, tirx.BufferLoad(source, index), index)

        return self._over(model, store)

    def _nest(self, work: Work) -> tirx.Stmt:
        """A block as a thread does it."""
        places: dict[tirx.Var, ir.Expr] = {}
        own: list[Axis] = []
        for axis in work.axes:
            if axis.var in self._threads.axes:
                places[axis.var] = self._places[self._threads.axes[axis.var]]
            elif is_one(axis.extent):
                places[axis.var] = _ZERO
            else:
                own.append(axis)

        def finished(part: tirx.Stmt) -> tirx.Stmt:
            part = tvm_ffi.structural_map(part, (ir.Var, lambda var: places.get(var, var)))
            part = tvm_ffi.structural_map(part, (tirx.BufferStore, self._stored))
            return tvm_ffi.structural_map(part, (ir.TensorLoad, self._loaded))

        store = work.at_points()
        if store is not None and self._is_number(store.buffer, own):
            value = finished(tirx.Evaluate(store.value)).value
            name = users_name(store.buffer) or str(store.buffer.name)
            if any(name == state.name for state in self._step.states):
                name = f"next_{name}"
            number = of_number(name, str(store.buffer.ty.dtype))
            self._numbers[store.buffer] = number
            return tirx.Bind(number, value)
        found = _looped(finished(work.body), [axis for axis in own if axis.is_reduced])
        if work.init is not None:
            found = sequence([finished(work.init), found])
        return _looped(found, [axis for axis in own if not axis.is_reduced])

    def _is_number(self, tensor: tirx.Var, axes: Sequence[Axis]) -> bool:
        """Whether a block gives a thread one number, that no other changes."""
        if axes or self._is_in_memory(tensor) or tensor in self._locals:
            return False
        return sum(tensor in _written(work) for work in self._step.works) == 1

    def _stored(self, store: tirx.BufferStore) -> tirx.BufferStore:
        if self._is_in_memory(store.buffer):
            return store
        index = self._own_index(store.buffer, store.indices)
        return tirx.BufferStore(self._local_of(store.buffer), store.value, index)

    def _loaded(self, load: ir.TensorLoad) -> ir.Expr:
        if load.source in self._numbers:
            return self._numbers[load.source]
        if load.source.scope() == "local" or self._is_in_memory(load.source):
            return load
        index = self._own_index(load.source, load.indices)
        return tirx.BufferLoad(self._local_of(load.source), index)

    def _is_in_memory(self, tensor: tirx.Var) -> bool:
        is_written = tensor in self._written or tensor in self._locals
        return tensor in self._outline.memories or not is_written

    def _own_index(self, tensor: tirx.Var, at: Sequence[ir.Expr]) -> list[ir.Expr]:
        return [at[n] for n in self._threads.own_axes(tensor)] or [_ZERO]

    def _local_of(self, tensor: tirx.Var) -> tirx.Var:
        if tensor not in self._locals:
            self._locals[tensor] = self._local(tensor, str(tensor.name))
        return self._locals[tensor]

    def _local(self, tensor: tirx.Var, name: str) -> tirx.Var:
        shape = [tensor.ty.shape[n] for n in self._threads.own_axes(tensor)]
        one = tirx.const(1, "int64")
        return tirx.decl_buffer(shape or [one], str(tensor.ty.dtype), name, scope="local")


def _looped(body: tirx.Stmt, axes: Sequence[Axis]) -> tirx.Stmt:
    for axis in reversed(axes):
        body = tirx.For(axis.var, _ZERO, axis.extent, tirx.ForKind.SERIAL, body)
    return body


def _written(work: Work) -> set[tirx.Var]:
    return {store.buffer for store in work.stores()}


def _is_cheap(value: ir.Expr) -> bool:
    """Whether a value takes no more than a load, or arithmetic with numbers that it is given."""
    loads = nodes(value, ir.TensorLoad)
    if not loads and not nodes(value, ir.Call):
        return len(nodes(value, ir.Expr)) <= _SHORT_TEXT
    indices = sum(len(nodes(index, ir.Expr)) for load in loads for index in load.indices)
    return len(nodes(value, ir.Expr)) - indices <= _TRIVIAL and not nodes(value, ir.Call)
