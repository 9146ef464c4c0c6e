"""What one step of a loop does to its tensors, as blocks of work one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx

from babytriton.ops.primfunc import is_users, nodes
from babytriton.ops.scattering import WHOLE
from babytriton.passes import lines
from babytriton.passes.bindings import CALL_TIR, is_tensor
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.drivers import Counted
from babytriton.passes.names import has_name
from babytriton.passes.statements import OPAQUE, has_addresses, is_number, renamed, without_decided

Functions = Mapping[ir.GlobalVar, ir.BaseFunc]
"""Those of a program: kernels, and what calls them."""


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
    return _each_part(work, lambda part: _with(part, tensors)) if tensors else work


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
    return _with(work.body.value, at)


def is_one(extent: ir.Expr) -> bool:
    """Whether an extent is 1."""
    return is_number(extent, 1)


def _are_same(one: ir.Expr, other: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(one, other))


@dataclass
class Scope:
    """What a function's variables are in the kernel.

    Attributes:
        tensors: by their variables.
        numbers: sizes among them.
    """

    tensors: dict[relax.Expr, tirx.Var] = field(default_factory=dict)
    numbers: dict[ir.Var, ir.Expr] = field(default_factory=dict)

    def tensor(self, expr: relax.Expr) -> tirx.Var:
        """A tensor."""
        if expr not in self.tensors:
            raise StandsAside
        return self.tensors[expr]

    def number(self, expr: ir.Expr) -> ir.Expr:
        """A number of known ones."""
        free = nodes(expr, ir.Var)
        if any(var not in self.numbers for var in free):
            raise StandsAside
        return tvm_ffi.structural_map(expr, (ir.Var, lambda var: self.numbers.get(var, var)))

    def entered(self, function: relax.Function, arguments: Sequence[relax.Expr]) -> Scope:
        """The scope of a function that is called with some of these."""
        inside = Scope()
        for param, argument in zip(function.params, arguments):
            pairs: list[tuple[ir.Expr, ir.Expr]] = []
            if is_tensor(param):
                inside.tensors[param] = self.tensor(argument)
                pairs = list(zip(param.ty.shape or (), inside.tensors[param].ty.shape))
            elif isinstance(param.ty, ir.PrimType):
                pairs = [(param, self.number(argument))]
            elif isinstance(param.ty, relax.ShapeType):
                given = map(self.number, argument.values)
                pairs = list(zip(param.ty.values, given))
            else:
                raise StandsAside
            for size, number in pairs:
                if isinstance(size, ir.Var):
                    inside.numbers.setdefault(size, number)
        return inside


def step_of(
    functions: Functions,
    driver: Counted,
    around: Scope,
    number: tirx.Var,
    states: Sequence[tirx.Var],
) -> Step:
    """One step of a loop.

    Args:
        functions: of the program.
        driver: the function that runs the steps.
        around: what its parameters are in the kernel.
        number: of the step.
        states: what it takes over from the one before.

    Raises:
        StandsAside: it does more than to call kernels that are blocks in plain loops.
    """
    function = functions[driver.body.op]
    reading = _Reading(functions, around.entered(function, driver.body.args))
    nexts = reading.results(function)
    return Step(number, list(states), nexts, reading.works, reading.lines)


def value_of(functions: Functions, scope: Scope, var: relax.Var, call: ir.Call, place: int) -> Work:
    """A tensor's value at each point, as one block, of what its kernel reads.

    Args:
        functions: of the program.
        scope: of the kernel's call.
        var: the tensor.
        call: of the kernel.
        place: of the tensor among the kernel's results.

    Raises:
        StandsAside: the kernel does more than to compute such values.
    """
    reading = _Reading(functions, scope)
    result = reading.kernel(var, call)[place]
    values: dict[tirx.Var, Work] = {}
    for work in reading.works:
        work = with_values(work, values)
        store = work.at_points()
        if store is None or store.buffer in values:
            raise StandsAside
        values[store.buffer] = work
    if result not in values:
        raise StandsAside
    return values[result]


class _Reading:
    """Goes through the function for one step.

    Args:
        functions: of the program.
        scope: of the function.

    Attributes:
        works: of its kernels.
        lines: of the user's that these compute.
    """

    def __init__(self, functions: Functions, scope: Scope) -> None:
        self._functions, self._scope = functions, scope
        self._tuples: dict[relax.Expr, list[tirx.Var]] = {}
        self.works: list[Work] = []
        self.lines: dict[str, None] = {}

    def results(self, function: relax.Function) -> list[tirx.Var]:
        """What the function gives, once its works are known."""
        if not isinstance(function.body, relax.SeqExpr):
            raise StandsAside
        for block in function.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise StandsAside
                self._binding(binding.var, binding.value)
        return self._results(function.body.body)

    def _results(self, expr: relax.Expr) -> list[tirx.Var]:
        if isinstance(expr, relax.Tuple):
            return [self._scope.tensor(x) for x in expr.fields]
        if expr in self._tuples:
            return self._tuples[expr]
        return [self._scope.tensor(expr)]

    def _binding(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._tuples:
            self._scope.tensors[var] = self._tuples[value.tuple_value][value.index]
        elif isinstance(value, ir.Call) and value.op == CALL_TIR and len(value.args) == 2:
            results = self.kernel(var, value)
            if isinstance(value.ty_args[0], ir.TupleType):
                self._tuples[var] = results
            else:
                [self._scope.tensors[var]] = results
        elif isinstance(value, (relax.Var, relax.Tuple)) and not is_tensor(var):
            self._tuples[var] = self._results(value)
        else:
            self._scope.tensors[var] = self._scope.tensor(value)

    def kernel(self, var: relax.Var, call: ir.Call) -> list[tirx.Var]:
        """Add the work of a kernel; its results."""
        func, arguments = self._functions[call.args[0]], list(call.args[1].fields)
        [given] = call.ty_args
        types = list(given.fields) if isinstance(given, ir.TupleType) else [given]
        blocks = plain_blocks(func)
        if not blocks or is_users(func) or len(func.params) != len(arguments) + len(types):
            raise StandsAside
        values: dict[ir.Var, ir.Expr] = {}
        for param, argument in zip(func.params, arguments):
            if isinstance(param.ty, tirx.BufferType):
                values[param] = tensor = self._scope.tensor(argument)
                pairs = zip(param.ty.shape, tensor.ty.shape)
                values.update((x, y) for x, y in pairs if isinstance(x, ir.Var))
            else:
                values[param] = self._scope.number(argument)
        results = []
        for param, type in zip(func.params[len(arguments) :], types):
            name = var.name if len(types) == 1 and has_name(var) else param.name
            shape = [self._scope.number(size) for size in type.shape]
            values[param] = tirx.decl_buffer(shape, str(param.ty.dtype), name)
            pairs = zip(param.ty.shape, shape)
            values.update((x, y) for x, y in pairs if isinstance(x, ir.Var))
            results.append(values[param])
        root = func.body.block
        for buffer in root.alloc_buffers:
            shape = [_with(size, values) for size in buffer.ty.shape]
            values[buffer] = tirx.decl_buffer(shape, str(buffer.ty.dtype), buffer.name)
        if not _are_whole(func):
            raise StandsAside
        self.works += [_work(block, values) for block in blocks]
        self.lines.update(dict.fromkeys(lines.of_kernel(func)))
        return results


def _with(node: ir.Expr | tirx.Stmt, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr | tirx.Stmt:
    return tvm_ffi.structural_map(node, (ir.Var, lambda var: values.get(var, var)))


def _are_whole(func: tirx.PrimFunc) -> bool:
    """Whether each block runs once at every point of its axes."""
    realized = [x for x in nodes(func.body, s_tir.SBlockRealize) if not x.same_as(func.body)]
    return all(
        is_number(x.predicate, 1)
        and all(is_number(axis.dom.min, 0) for axis in x.block.iter_vars)
        and all(isinstance(value, ir.Var | tirx.IntImm) for value in x.iter_values)
        for x in realized
    )


_KINDS = {tirx.IterVar.DataPar: False, tirx.IterVar.CommReduce: True}


def _work(block: s_tir.SBlock, values: Mapping[ir.Var, ir.Expr]) -> Work:
    """A block on the kernel's own tensors, with variables of its own."""
    is_known = set(block.annotations) <= {WHOLE} and not block.alloc_buffers
    if not is_known or block.match_buffers or has_addresses(block.body):
        raise StandsAside
    if any(nodes(block.body, kind) for kind in (*OPAQUE, s_tir.SBlock, tirx.AllocBuffer)):
        raise StandsAside
    axes, own = [], dict(values)
    for axis in block.iter_vars:
        if axis.iter_type not in _KINDS:
            raise StandsAside
        var = tirx.Var(axis.var.name.removeprefix("v_"), str(axis.var.ty.dtype))
        own[axis.var] = var
        axes.append(Axis(var, _with(axis.dom.extent, values), _KINDS[axis.iter_type]))
    init = None if block.init is None else _with(block.init, own)
    return Work(tuple(axes), init, renamed(_with(block.body, own)))
