"""What one step of a loop does to its tensors, as blocks of work one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.statements import is_number, without_decided

_ZERO = tirx.const(0, "int64")


class StandsAside(Exception):
    """The loop does not become one kernel."""


@dataclass(frozen=True)
class Axis:
    """An axis that a block goes along.

    Attributes:
        var: the place on it.
        extent: how many there are, from 0.
        is_reduced: whether all places go into one result.
    """

    var: tirx.Var
    extent: ir.Expr
    is_reduced: bool


@dataclass(frozen=True)
class Work:
    """A block: what is done at each point of its axes.

    Attributes:
        axes: of the block.
        init: what is done before the first place of those that are reduced; None without any.
        body: what is done at each.
    """

    axes: tuple[Axis, ...]
    init: tirx.Stmt | None
    body: tirx.Stmt

    @property
    def parts(self) -> tuple[tirx.Stmt, ...]:
        """What is done, in order."""
        return (self.body,) if self.init is None else (self.init, self.body)

    def stores(self) -> list[tirx.BufferStore]:
        """All that it stores."""
        return [store for part in self.parts for store in nodes(part, tirx.BufferStore)]

    def loads(self) -> list[ir.TensorLoad]:
        """All that it reads."""
        return [load for part in self.parts for load in nodes(part, ir.TensorLoad)]

    def at_points(self) -> tirx.BufferStore | None:
        """The one store of a block that stores a value at each of its points, and no more."""
        store = self.body
        if self.init is not None or not isinstance(store, tirx.BufferStore):
            return None
        axes, shape = self.axes, list(store.buffer.ty.shape)
        is_each = len(store.indices) == len(axes) and all(
            _is_at(index, axis) and _are_same(axis.extent, size)
            for index, axis, size in zip(store.indices, axes, shape)
        )
        # A number has an axis of one point, which no index names.
        is_number = not shape and all(is_one(axis.extent) for axis in axes)
        return store if is_each or is_number else None


@dataclass
class Step:
    """One step.

    Attributes:
        number: of the step.
        states: what it takes over from the one before.
        nexts: what it leaves of each.
        works: in the order in which they are done.
        lines: of the user's that it computes.
    """

    number: tirx.Var
    states: list[tirx.Var]
    nexts: list[tirx.Var]
    works: list[Work] = field(default_factory=list)
    lines: dict[str, None] = field(default_factory=dict)

    def tell_numbers(self, low: ir.Expr, high: ir.Expr) -> None:
        """Put numbers that are made of the step's in the place of tensors that hold them.

        Args:
            low: the first number of a step.
            high: the one after the last.
        """
        values: dict[tirx.Var, Work] = {}
        writers = Counter(store.buffer for work in self.works for store in work.stores())
        works = []
        for work in self.works:
            analyzer = sym.Analyzer()
            analyzer.bind(self.number, ir.Range.from_min_extent(low, high - low))
            for axis in work.axes:
                analyzer.bind(axis.var, ir.Range.from_min_extent(_ZERO, axis.extent))
            work = _each_part(with_values(work, values), partial(_decided, analyzer=analyzer))
            works.append(work)
            store = work.at_points()
            if store is None or len(store.indices) or writers[store.buffer] > 1:
                continue
            is_whole = str(store.buffer.ty.dtype).startswith(("int", "bool"))
            # Of a cast to fewer bits the simplifier does not see that integers wrap.
            if is_whole and not (
                nodes(store.value, ir.TensorLoad) or nodes(store.value, tirx.Cast)
            ):
                values[store.buffer] = work
        self.works = works

    def copy_given(self) -> None:
        """Have a step make a copy of what it leaves of a state, but has not made itself."""
        made = {store.buffer for work in self.works for store in work.stores()}
        for place, given in enumerate(self.nexts):
            if given in made or given in self.states:
                continue
            shape = list(given.ty.shape)
            self.nexts[place] = tirx.decl_buffer(shape, str(given.ty.dtype), given.name)
            axes = [Axis(tirx.Var(f"i{n}", "int64"), size, False) for n, size in enumerate(shape)]
            at = [axis.var for axis in axes]
            store = tirx.BufferStore(self.nexts[place], tirx.BufferLoad(given, at), at)
            self.works.append(Work(tuple(axes), None, store))

    def memories(self) -> set[tirx.Var]:
        """The states that steps write parts of; the works then do so where these lie.

        A part is written to a copy, which is left out where nothing reads the old one after it.

        Raises:
            StandsAside: something does.
        """
        same: dict[tirx.Var, tirx.Var] = {}
        kept: list[Work] = []
        for number, work in enumerate(self.works):
            copied = _copied(work)
            if copied is None:
                kept.append(work)
                continue
            old, new = copied
            state = same.get(old, old)
            is_ended = state in self.states and not any(
                same.get(load.source, load.source).same_as(state)
                for later in self.works[number + 1 :]
                for load in later.loads()
                if not load.source.same_as(new)
            )
            if is_ended and self._becomes(new, state):
                same[new] = state
            else:
                kept.append(work)
        self.works = [replaced(work, same) for work in kept]
        self.nexts = [same.get(x, x) for x in self.nexts]
        found = set(same.values())
        for state, after in zip(self.states, self.nexts):
            # A step may need what was there once it has written, and so a copy of its own.
            is_either = state in found or after in found
            if is_either and not after.same_as(state):
                raise StandsAside
        return found

    def _becomes(self, new: tirx.Var, state: tirx.Var) -> bool:
        """Whether a copy, or a copy of that, is what the step leaves of a state."""
        following = {state: new}
        for old, copy in filter(None, map(_copied, self.works)):
            following.setdefault(old, copy)
        after = self.nexts[self.states.index(state)]
        while not new.same_as(after) and new in following:
            new = following[new]
        return bool(new.same_as(after))


def _is_at(index: ir.Expr, axis: Axis) -> bool:
    return index.same_as(axis.var) or (is_number(index, 0) and is_one(axis.extent))


def _copied(work: Work) -> tuple[tirx.Var, tirx.Var] | None:
    """What a block copies all of, and to what."""
    store = work.at_points()
    if store is None or not isinstance(store.value, ir.TensorLoad):
        return None
    load = store.value
    is_all = len(load.indices) == len(store.indices) and all(
        x.same_as(y) for x, y in zip(load.indices, store.indices)
    )
    shapes = zip(load.source.ty.shape, store.buffer.ty.shape)
    if not is_all or not all(_are_same(x, y) for x, y in shapes):
        return None
    return load.source, store.buffer


def replaced(work: Work, tensors: Mapping[tirx.Var, tirx.Var]) -> Work:
    """The work on other tensors."""
    return _each_part(work, lambda part: with_variables(part, tensors)) if tensors else work


def _each_part(work: Work, change: Callable[[tirx.Stmt], tirx.Stmt]) -> Work:
    init = None if work.init is None else change(work.init)
    return Work(work.axes, init, change(work.body))


def _decided(part: tirx.Stmt, analyzer: sym.Analyzer) -> tirx.Stmt:
    """What is done, with indices as short as they can be and no conditions that always hold."""

    def at(load: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(load.source, list(map(analyzer.simplify, load.indices)))

    def to(store: tirx.BufferStore) -> tirx.BufferStore:
        indices = list(map(analyzer.simplify, store.indices))
        return tirx.BufferStore(store.buffer, store.value, indices)

    part = without_decided(part, analyzer)
    return tvm_ffi.structural_map(part, [(ir.TensorLoad, at), (tirx.BufferStore, to)])


def with_values(work: Work, values: Mapping[tirx.Var, Work]) -> Work:
    """The work with values in the place of what it reads of them.

    Args:
        work: the work.
        values: by tensors, the blocks that store one value at each point of these.
    """
    if not any(load.source in values for load in work.loads()):
        return work

    def computed(load: ir.TensorLoad) -> ir.Expr:
        known = values.get(load.source)
        return load if known is None else value_at(known, load.indices)

    return _each_part(work, lambda part: tvm_ffi.structural_map(part, (ir.TensorLoad, computed)))


def value_at(work: Work, indices: Sequence[ir.Expr]) -> ir.Expr:
    """The value that a block stores at a point."""
    at: dict[ir.Var, ir.Expr] = {axis.var: _ZERO for axis in work.axes}
    at.update(zip([axis.var for axis in work.axes], indices))
    return with_variables(work.body.value, at)


def is_one(extent: ir.Expr) -> bool:
    """Whether an extent is 1."""
    return is_number(extent, 1)


def _are_same(one: ir.Expr, other: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(one, other))


def with_variables(
    node: ir.Expr | tirx.Stmt, values: Mapping[ir.Var, ir.Expr]
) -> ir.Expr | tirx.Stmt:
    """An expression or statement with others in the place of variables."""
    return tvm_ffi.structural_map(node, (ir.Var, lambda var: values.get(var, var)))
