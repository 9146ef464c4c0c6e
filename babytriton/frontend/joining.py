"""Where two paths through a function meet: what they leave behind becomes one again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from babytriton import errors
from babytriton.containers import sequence
from babytriton.diagnostics import Diagnostic, Span
from babytriton.frontend.exits import Exits
from babytriton.frontend.grown import Grown
from babytriton.frontend.program import Program, describe
from babytriton.frontend.scope import Scope, Unusable
from babytriton.frontend.state import State, containers_in, reachable, refill
from babytriton.ops import scalars
from babytriton.ops.regions import Region
from babytriton.ops.selections.selection import Selection
from babytriton.ops.storage import Storage
from babytriton.ops.value import NUMBERS, Scalar, Value
from babytriton.types import TensorType


class Differ(Exception):
    """Two values that cannot become one."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__()
        # As text: what a list holds changes while paths are compiled.
        self.one = describe(one)
        self.other = describe(other)


class Missing:
    """What a path has in place of a value that only the other path has."""


MISSING = Missing()


@dataclass(frozen=True)
class Path:
    """One of the ways through a part of a function, after it was compiled.

    Attributes:
        region: what was emitted on it.
        result: what it gives.
        state: what it leaves behind.
        exprs: the tensors that it leaves behind, as they are at its end.
    """

    region: Region
    result: Any
    state: State
    exprs: dict[int, Any]

    @property
    def returns(self) -> bool:
        """Whether it surely leaves the function, so that what follows never sees its names."""
        exits = self.result
        return isinstance(exits, Exits) and exits.always and set(exits.flags) == {"return"}

    def expr(self, value: Value) -> Any:
        """A tensor at the end of the path."""
        return self.exprs.get(id(value), value.made)


def follow(program: Program, scope: Scope, names: Iterable[str], run: Callable[[], Any]) -> Path:
    """Compile a part of a function apart from the rest, and go back to the state before.

    Args:
        program: being compiled.
        scope: of the function that the part stands in.
        names: in that scope, which are of interest after the part.
        run: compiles the part.
    """
    before = program.state()
    with program.part() as region:
        result = run()
        state = program.state()
        left = [scope.names.get(name) for name in names]
        left.append(result.value if isinstance(result, Exits) else result)
        left += before.changed_containers(state)
        exprs = {id(value): value.expr for value in reachable(left)}
    program.restore(before)
    return Path(region, result, state, exprs)


class Join:
    """Makes one value of two, each from another path.

    Args:
        program: being compiled.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.pairs: list[tuple[Any, Any]] = []
        """What must be taken from the paths: tensors and numbers, or ``MISSING``."""
        self._made: list[Value] = []
        self._known: dict[tuple[int, int], Any] = {}
        self.containers: list[tuple[Any, Any, Any]] = []
        """Lists and dicts of two paths, and what was made of them."""

    def value(self, one: Any, other: Any) -> Any:
        """What a name stands for that stands for ``one`` or ``other``.

        Raises:
            Differ: they are not of one type.
        """
        if one is other:
            return one
        known = self._known.get((id(one), id(other)))
        if known is not None:
            return known
        found = self._joined(one, other)
        self._known[id(one), id(other)] = found
        return found

    def _joined(self, one: Any, other: Any) -> Any:
        model = other if one is MISSING else one
        if isinstance(model, (tuple, list, dict)):
            return self._container(one, other, model)
        if isinstance(model, Selection):
            return self._selection(one, other, model)
        if type(one) in NUMBERS and type(one) is type(other) and _text(one) == _text(other):
            return one
        kinds = {_kind(x) for x in (one, other) if x is not MISSING}
        if len(kinds) == 1 and kinds != {None}:
            return self._leaf(one, other, model)
        if one is MISSING or other is MISSING:
            return model
        if type(one) is type(other) and not isinstance(one, Value) and _equal(one, other):
            return one
        raise Differ(one, other)

    def _container(self, one: Any, other: Any, model: Any) -> Any:
        if any(side is not MISSING and not _alike(side, model) for side in (one, other)):
            raise Differ(one, other)
        keys = _keys(model)
        items = [self.value(_item(one, key), _item(other, key)) for key in keys]
        if isinstance(model, (dict, list)):
            found = _filled(model, items)
            self.containers.append((one, other, found))
            return found
        return sequence(type(model), items)

    def _selection(self, one: Any, other: Any, model: Selection) -> Selection:
        if any(side is not MISSING and not _selects_alike(side, model) for side in (one, other)):
            raise Differ(one, other)
        sides = [x if x is MISSING else x.parts for x in (one, other)]
        parts = (self.value(_item(sides[0], i), _item(sides[1], i)) for i in range(3))
        return model.rebuilt(parts)

    def _leaf(self, one: Any, other: Any, model: Any) -> Value:
        builder = self._program.builder
        found: Value
        if isinstance(model, Value) and not isinstance(model, Scalar):
            found = builder.memory.one_of([x for x in (one, other) if x is not MISSING])
        else:
            kind = model.kind if isinstance(model, Scalar) else type(model)
            found = builder.number(None, kind(1))
        self.pairs.append((one, other))
        self._made.append(found)
        return found

    def side(self, path: Path, values: Iterable[Any], models: Iterable[Any]) -> list[Any]:
        """What is taken from one path, as expressions."""
        found = []
        for value, model in zip(values, models):
            if value is MISSING:
                found.append(blank(self._program, model))
            elif isinstance(value, Value):
                found.append(path.expr(value))
            else:
                found.append(expression(self._program, value))
        return found

    def fill(self, exprs: Iterable[Any]) -> None:
        """Let the values that were made stand for what was emitted."""
        for value, expr in zip(self._made, exprs):
            value.made = expr
            if value.storage is not None:
                value.storage.expr = expr
        for side in (0, 1):
            sides = [pair[side] for pair in self.pairs]
            self._program.builder.memory.relate(zip(self._made, sides))

    def freeze(
        self, base: State, paths: Sequence[Path], scopes: Iterable[Scope], first: int
    ) -> None:
        """Let no one write where it is open whose memory it is: from the ``first`` pair on.

        That is where a value stands for a tensor that something else sees too, or that a path
        does not write to either, or where two values stand for tensors that share memory.
        """
        made = {id(value) for value in self._made}
        everything = [list(scope.names.values()) for scope in scopes]
        seen = {value.storage for value in reachable(everything) if id(value) not in made}
        seen |= {value.storage for value in self._program.parameters.values()}
        for side in (0, 1):
            holders: dict[Storage, list[Value]] = {}
            for pair, value in zip(self.pairs[first:], self._made[first:]):
                storage = getattr(pair[side], "storage", None)
                if storage is not None:
                    holders.setdefault(storage, []).append(value)
            for storage, values in holders.items():
                outside = storage in base.memory and storage in seen
                if outside:
                    storage.frozen = True
                _, _, is_frozen = paths[side].state.held(storage)
                for value in values if outside or is_frozen or len(values) > 1 else ():
                    assert value.storage is not None
                    value.storage.frozen = True


def expression(program: Program, value: Any) -> Any:
    """A tensor or a number as an expression."""
    return value.expr if isinstance(value, Value) else scalars.constant(program.builder, value)


def blank(program: Program, model: Any) -> Any:
    """What stands in for a value on a path that has none, and that nothing reads."""
    if isinstance(model, Value) and not isinstance(model, Scalar):
        sizes, dtype = model.meta.shape, model.meta.dtype
        return program.builder.call(torch.zeros, (sizes,), {"dtype": dtype}).expr
    kind = model.kind if isinstance(model, Scalar) else type(model)
    return scalars.constant(program.builder, kind(0))


def leaves(value: Any, model: Any = MISSING) -> list[Any]:
    """The tensors and numbers in a value, in order.

    Args:
        value: nested tuples, lists and dicts, or one thing.
        model: of the same structure, if given, with leaves of the same types.

    Raises:
        Differ: it is not.
    """
    if isinstance(value, (tuple, list, dict)) and not isinstance(value, torch.Size):
        if model is not MISSING and not _alike(value, model):
            raise Differ(model, value)
        keys = _keys(value)
        return [leaf for key in keys for leaf in leaves(_item(value, key), _item(model, key))]
    if isinstance(value, Selection):
        if model is not MISSING and not _selects_alike(value, model):
            raise Differ(model, value)
        return list(value.parts)
    if _kind(value) is None:
        if model is not MISSING and not (value is model or _equal(value, model)):
            raise Differ(model, value)
        return []
    if model is not MISSING and _kind(value) != _kind(model):
        raise Differ(model, value)
    return [value]


def rebuilt(model: Any, values: Iterator[Any]) -> Any:
    """A value of the structure of another one, with other tensors and numbers in it."""
    if isinstance(model, dict):
        return _filled(model, [rebuilt(item, values) for item in model.values()])
    if isinstance(model, (tuple, list)) and not isinstance(model, torch.Size):
        items = [rebuilt(_item(model, key), values) for key in _keys(model)]
        if isinstance(model, list):
            return _filled(model, items)
        return sequence(type(model), items)
    if isinstance(model, Selection):
        return model.rebuilt(islice(values, len(model.parts)))
    return model if _kind(model) is None else next(values)


def _filled(model: Any, items: list[Any]) -> Any:
    """A list or dict of the class of another one, with other items."""
    found = copy.copy(model)
    head = model.head if isinstance(model, Grown) else None
    filled = items if head is None else Grown(items, head)
    refill(found, dict(zip(model, items)) if isinstance(model, dict) else filled)
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two containers are of one kind and size, with the same keys."""
    if isinstance(one, list) and isinstance(other, list):
        heads = [getattr(x, "head", None) for x in (one, other)]
        return heads[0] is heads[1] and _keys(one) == _keys(other)
    if type(one) is not type(other) or len(one) != len(other):
        return False
    return not isinstance(one, dict) or list(one) == list(other)


def _keys(container: Any) -> Any:
    """Of the items of a container."""
    if isinstance(container, dict):
        return list(container)
    return range(len(container.later if isinstance(container, Grown) else container))


def _selects_alike(one: Any, other: Any) -> bool:
    """Whether two masks select the same dimensions of tensors of one type."""
    return (
        isinstance(one, Selection)
        and isinstance(other, Selection)
        and one.axis == other.axis
        and [_kind(part) for part in one.parts] == [_kind(part) for part in other.parts]
    )


def join_states(
    program: Program,
    scope: Scope,
    base: State,
    paths: tuple[Path, Path],
    live: Iterable[str],
    span: Span,
    condition: Scalar,
    join: Join,
) -> list[Storage]:
    """Let the scope's names and containers stand for what either path left behind.

    Returns:
        The storages that a path wrote to; what they hold is not joined yet.

    Raises:
        Differ: a container holds things of other types on the two paths.
    """
    one, other = paths
    for container in base.changed_containers(one.state, other.state):
        items = [path.state.content(id(container), container) for path in paths]
        refill(container, join.value(*items))
    join.containers.clear()  # those above are still what they were
    before = base.names[scope][0]
    (first, first_places), (second, second_places) = (path.state.names[scope] for path in paths)
    wanted = frozenset(live)
    for name in {**first, **second}:
        values = first.get(name, MISSING), second.get(name, MISSING)
        if values[0] is values[1]:
            scope.bind(name, values[0])
        elif one.returns or other.returns:
            _bind_from(scope, name, values, one.returns, before, join, name in wanted)
        elif name in wanted or name in before:
            places = first_places.get(name), second_places.get(name)
            joined = _join_name(name, values, places, span, condition, join, name in wanted)
            scope.bind(name, joined)
    for name in before:
        if name not in first and name not in second:
            scope.unbind(name)
    _keep_shared(program, base, join)
    for storage in base.memory:
        storage.frozen |= any(path.state.held(storage)[2] for path in paths)
    return base.changed_memory(one.state, other.state)


def _bind_from(
    scope: Scope,
    name: str,
    values: tuple[Any, Any],
    side: bool,
    before: dict[str, Any],
    join: Join,
    wanted: bool,
) -> None:
    """Bind a name to what it is on the one path that goes on: the second, if ``side``."""
    value = values[side]
    if value is MISSING:
        scope.names.pop(name, None)
    elif value is before.get(name, MISSING) or isinstance(value, Unusable):
        scope.bind(name, value)
    elif wanted:
        scope.bind(name, join.value(*((MISSING, value) if side else (value, MISSING))))


def _keep_shared(program: Program, base: State, join: Join) -> None:
    """Let no one change a list or dict that is another name's on one path only."""
    for one, other, found in join.containers:
        held = [x for scope in program.scopes for x in containers_in(scope.names)]
        for side in (one, other):
            if id(side) in base.contents and any(x is side for x in held):
                program.captures.keep(side)
                program.captures.keep(found)


def _join_name(
    name: str,
    values: tuple[Any, Any],
    places: tuple[Span | None, Span | None],
    span: Span,
    condition: Scalar,
    join: Join,
    wanted: bool,
) -> Any:
    unusable = next((value for value in values if isinstance(value, Unusable)), None)
    if unusable is not None:
        return unusable
    if any(value is MISSING for value in values):
        bound = values[1] is MISSING

        def undecided(at: Span) -> Diagnostic:
            path = f"it is bound only where the condition at line {span.line} is {bound}"
            return errors.Undecided(at, name, path, f"bound in {_place(places[not bound])}")

        return Unusable(undecided, condition.arguments)
    try:
        if wanted:
            return join.value(*values)
    except Differ:
        pass

    def unmerged(at: Span) -> Diagnostic:
        one, other = (describe(value) for value in values)
        where = " and ".join(_place(place) for place in places if place)
        why = errors.Unmerged.at_condition(span)
        return errors.Unmerged(at, f"`{name}`", one, other, why, f"bound in {where}")

    return Unusable(unmerged, condition.arguments)


def _place(place: Span | None) -> str:
    return "" if place is None else f"{place.path}:{place.line}: {place.text().strip()}"


def _kind(value: Any) -> Any:
    """What must agree for two values to be one tensor or number of the run time."""
    if isinstance(value, Scalar):
        return value.kind
    if isinstance(value, Value):
        return TensorType.of(value.meta)
    return type(value) if type(value) in NUMBERS else None


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, Grown):
        return list.__getitem__(container, key)
    return MISSING if container is MISSING else container[key]


def _text(number: Any) -> str:
    # By their bits: NaN is not equal to itself, and 0.0 equals -0.0.
    return number.hex() if isinstance(number, float) else str(number)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # whatever a user's object does when it is compared
        return False
