"""Values a function takes from outside itself: where each was found, and whether it still holds.

Numbers and strings become constants of the program, so a changed one makes another program;
tensors become hidden inputs, read anew at each call; anything else is held by identity.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import keyword
import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from babytriton.containers import sequence
from babytriton.frontend.signature import OF_TORCH, records
from babytriton.frontend.snapshots import is_array, is_blind, looks_into, state_of
from babytriton.types import TensorType

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), *OF_TORCH)


Know = Callable[[str, Any], str]
"""Gives a variable for an object, of which a name is known that tells what it is."""


@dataclass(frozen=True)
class Place:
    """Somewhere a value can be read: ``read()`` gives what is there now.

    Attributes:
        path: as the user would write it, such as ``self.weight`` or ``WEIGHTS[0]``.
        owner: what it is read from, where ``how`` says how.
        how: what stands behind the owner in Python, such as ``["WEIGHTS"]``.
    """

    path: str
    read: Callable[[], Any]
    owner: Any = None
    how: str | None = None

    @classmethod
    def of_global(cls, scope: dict[str, Any], name: str) -> Place:
        """A name of a module."""
        return cls(name, lambda: scope[name], scope, f"[{name!r}]")

    @classmethod
    def of_builtin(cls, scope: dict[str, Any], name: str) -> Place:
        """A name of Python's, which one of the module's may take the place of."""
        return cls(name, lambda: scope[name] if name in scope else vars(builtins)[name])

    @classmethod
    def of_cell(cls, cell: types.CellType, name: str) -> Place:
        """A variable of an enclosing function."""
        return cls(name, lambda: cell.cell_contents, cell, ".cell_contents")

    @classmethod
    def of_module(cls, module: types.ModuleType, name: str) -> Place:
        """A name imported from a module inside the function."""
        return cls(name, lambda: getattr(module, name))

    def item(self, owner: Any, key: Any) -> Place:
        """An item of the container found here."""
        read = dict.__getitem__ if isinstance(owner, dict) else operator.getitem
        return Place(f"{self.path}[{key!r}]", lambda: read(owner, key))

    def expression(self, know: Know) -> str:
        """What gives the value in Python; a call of a function takes longer."""
        if self.how is None:
            return f"{know('read', self.read)}()"
        return f"{know('owner', self.owner)}{self.how}"


_ANY = object()


@dataclass(frozen=True)
class Guard:
    """What must still be true of a place for the program to be the right one.

    Attributes:
        place: where.
        holds: whether the value found there will do.
        before: the value that the program was compiled for, in words.
        itself: the one object that will do, where no other does.
        is_of_input: whether the value is a hidden input of the program.
    """

    place: Place
    holds: Callable[[Any], bool]
    before: str = "another object"
    itself: Any = _ANY
    is_of_input: bool = False

    @classmethod
    def of_object(cls, place: Place, value: Any, before: str = "another object") -> Guard:
        """That there is one object and no other."""
        if type(value).__module__.startswith("tvm."):
            # Python's objects are handles of TVM's: a module makes another at each look into it.
            return cls(place, lambda now: bool(value.same_as(now)), before)
        return cls(place, lambda now: now is value, before, value)

    def __call__(self) -> bool:
        try:
            return self.holds(self.place.read())
        except Exception:  # whatever a user's property raises, the value is not there
            return False

    def test(self, know: Know) -> str:
        """What is true in Python where it holds; it may raise anything where it does not."""
        found = self.place.expression(know)
        if self.itself is _ANY:
            return f"{know('holds', self.holds)}({found})"
        return f"{found} is {know('itself', self.itself)}"


@dataclass(frozen=True)
class Captured:
    """What a program takes from outside at a moment of compiling.

    Attributes:
        guards: how many there are.
        watched: what they are of.
        lifted: the containers among that.
        states: guards on what objects hold.
    """

    guards: int
    watched: set[tuple[Any, ...]]
    lifted: dict[int, tuple[Any, Any]]
    states: dict[int, Guard]


@dataclass
class Captures:
    """Everything one program takes from outside.

    Args:
        tensor: makes the hidden input for a tensor found at a place; gives its type as well.
    """

    tensor: Callable[[Place, torch.Tensor], tuple[Any, TensorType]]
    guards: list[Guard] = field(default_factory=list)
    _tensors: dict[int, tuple[Any, Any, Place]] = field(default_factory=dict)
    _lifted: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _outside: dict[int, Any] = field(default_factory=dict)
    _originals: dict[int, Any] = field(default_factory=dict)
    _watched: set[tuple[Any, ...]] = field(default_factory=set)
    _states: dict[int, Guard] = field(default_factory=dict)
    _paths: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """How the user reaches each object met so far, which is kept alive for its id."""

    def mark(self) -> Captured:
        """What is watched at this moment."""
        return Captured(
            len(self.guards), set(self._watched), dict(self._lifted), dict(self._states)
        )

    def undo(self, since: Captured) -> None:
        """Watch nothing that was met since a moment, but for inputs: the program has these."""
        later = self.guards[since.guards :]
        self.guards[since.guards :] = [guard for guard in later if guard.is_of_input]
        self._watched, self._lifted = since.watched, since.lifted
        self._states = since.states

    def lift(self, place: Place, value: Any) -> Any:
        """The program's view of a value found outside: tensors in it become hidden inputs."""
        if isinstance(value, torch.Tensor):
            return self._lift_tensor(place, value)
        if isinstance(value, (list, dict, tuple)):
            return self._lift_container(place, value)
        if isinstance(value, (set, frozenset, collections.deque)):
            self.guards.append(Guard(place, _equal_to(copy.copy(value)), described(value)))
            self._outside[id(value)] = value
            return value
        if isinstance(value, _CONSTANTS) or (is_array(value) and not value.shape):
            self.guards.append(Guard(place, _equal_to(value), described(value)))
        else:
            self.name(value, place.path)
            if isinstance(value, types.FunctionType):
                self.guards.append(Guard(place, _same_function(value)))
            else:
                self.guards.append(Guard.of_object(place, value))
        return value

    def name(self, value: Any, path: str) -> None:
        """Say how the user reaches an object, for the paths of its attributes."""
        self._paths[id(value)] = (value, path)

    def name_argument(self, value: Any, path: str) -> None:
        """The same for an argument, and watch the code of a function."""
        self.name(value, path)
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            place = Place(f"{path}.__code__", lambda: function)
            self.watch((id(function), "__code__"), Guard(place, _same_function(function)))

    def path_of(self, value: Any) -> str | None:
        """How the user reaches an object from outside; ``None`` for one that was not met."""
        found = self._paths.get(id(value))
        return None if found is None else found[1]

    def watch(self, key: tuple[Any, ...], guard: Guard) -> None:
        """Add a guard, unless there is one for the same thing, which ``key`` names."""
        if key not in self._watched:
            self._watched.add(key)
            self.guards.append(guard)

    def watch_method(self, owner: Any, name: str, method: Any) -> None:
        """Hold a method of an object from outside to be the same function."""
        function = getattr(method, "__func__", None)
        if isinstance(function, types.FunctionType) and id(owner) in self._paths:
            is_same = _same_function(function)
            place = self.attribute_place(owner, name)
            self.watch((id(owner), name), Guard(place, lambda now: is_same(now.__func__)))

    def watch_class(self, owner: type, name: str, found: Any) -> None:
        """Hold a class to have the same property, or method, of a name."""
        place = Place(f"{owner.__qualname__}.{name}", lambda: _declared(owner, name))
        self.watch((id(owner), name, "of the class"), Guard.of_object(place, found))

    def watch_presence(self, owner: Any, name: str, is_there: bool) -> None:
        """Hold an object to have an attribute, or to be without one."""
        place = Place(self.attribute_place(owner, name).path, lambda: hasattr(owner, name))
        before = "there" if is_there else "not there"
        self.watch((id(owner), name, "is there"), Guard.of_object(place, is_there, before))

    def watch_whole(self, fn: Callable[..., Any], values: Iterable[Any]) -> None:
        """Hold objects from outside to what they hold, where Python may read any of it.

        Args:
            fn: a function of Python's.
            values: what it is given.
        """
        for value in values:
            if id(value) in self._paths and looks_into(fn, value):
                before = state_of(value)
                if before is not None:
                    place = Place(f"what {self._paths[id(value)][1]} holds", _that(value))
                    self._states.setdefault(id(value), Guard(place, _of_state(before)))

    def used_up(self, fn: Callable[..., Any], values: Iterable[Any]) -> str | None:
        """How the user reaches an iterator from outside that Python would take items of, if any."""
        for value in values:
            is_ours = id(value) in self._paths and not is_blind(fn)
            if is_ours and isinstance(value, collections.abc.Iterator):
                return self._paths[id(value)][1]
        return None

    def settled(self) -> tuple[Guard, ...]:
        """All guards, once the program is there.

        An object that has changed since, as one that counts how often it is asked, will do so at
        each call: it is held by identity alone.
        """
        return (*self.guards, *(guard for guard in self._states.values() if guard()))

    def attribute_place(self, owner: Any, name: str) -> Place:
        """An attribute of an object from outside."""
        _, path = self._paths.get(id(owner), (owner, type(owner).__name__))
        how = f".{name}" if name.isidentifier() and not keyword.iskeyword(name) else None
        return Place(f"{path}.{name}", lambda: getattr(owner, name), owner, how)

    def item_place(self, owner: Any, key: Any) -> Place:
        """An item of an object from outside that is no plain container."""
        _, path = self._paths.get(id(owner), (owner, type(owner).__name__))
        return Place(f"{path}[{key!r}]", lambda: owner[key])

    def original(self, value: Any) -> Any:
        """What stands outside the function for a container that was made of it, and what else."""
        return self._originals.get(id(value), value)

    def is_outside(self, container: Any) -> bool:
        """Whether a container was made outside the function, so that it must not change."""
        return id(container) in self._outside

    def _lift_tensor(self, place: Place, value: torch.Tensor) -> Any:
        known = self._tensors.get(id(value))
        if known is None:
            input, type = self.tensor(place, value)
            known = self._tensors[id(value)] = (value, input, place)
            device, grad = value.device, records(value)
            fits = functools.partial(_fits, type=type, device=device, grad=grad)
            self.guards.append(Guard(place, fits, described(value), is_of_input=True))
        else:
            # Two names of one tensor share an input for as long as they are one tensor.
            first = known[2]
            self.guards.append(Guard(place, lambda now: now is first.read(), is_of_input=True))
        return known[1]

    def _lift_container(self, place: Place, value: Any) -> Any:
        known = self._lifted.get(id(value))
        if known is not None:
            return known[1]
        size = len(value)
        self.guards.append(Guard(place, lambda now: now is value and len(now) == size))
        if isinstance(value, dict):
            keys = tuple(value)
            self.guards.append(Guard(place, lambda now: tuple(now) == keys))
            lifted: Any = copy.copy(value)
            for key in keys:
                item = self.lift(place.item(value, key), dict.__getitem__(value, key))
                dict.__setitem__(lifted, key, item)
        else:
            items = [self.lift(place.item(value, i), item) for i, item in enumerate(value)]
            if isinstance(value, list):
                lifted = copy.copy(value)
                lifted[:] = items
            else:
                lifted = sequence(type(value), items)
        self._lifted[id(value)] = (value, lifted)
        self._originals[id(lifted)] = value
        self.keep(lifted)
        return lifted

    def keep(self, container: Any) -> None:
        """Say that a container, and what it holds, is not the function's to change."""
        self._outside[id(container)] = container
        items = container.values() if isinstance(container, dict) else container
        for item in items:
            if isinstance(item, (list, dict, tuple)):
                self.keep(item)


def described(value: Any) -> str:
    """A value from outside, in words."""
    if isinstance(value, torch.Tensor):
        return f"{TensorType.of(value)} on {value.device}"
    text = repr(value)
    return text if len(text) <= 40 else f"another {type(value).__name__}"


def _declared(owner: type, name: str) -> Any:
    """What a class has of a name, itself or from what it inherits from."""
    return next((vars(each)[name] for each in owner.__mro__ if name in vars(each)), None)


def _equal_to(value: Any) -> Callable[[Any], bool]:
    kind = type(value)
    if isinstance(value, float):
        # By their bits: NaN is not equal to itself, and 0.0 equals -0.0.
        text = value.hex()
        return lambda now: type(now) is kind and now.hex() == text
    return lambda now: type(now) is kind and bool(now == value)


def _that(value: Any) -> Callable[[], Any]:
    return lambda: value


def _of_state(before: Any) -> Callable[[Any], bool]:
    return lambda now: bool(state_of(now) == before)


def _same_function(value: types.FunctionType) -> Callable[[Any], bool]:
    code = value.__code__  # reloading a module in a notebook replaces it
    return lambda now: now is value and now.__code__ is code


def _fits(now: Any, type: TensorType, device: torch.device, grad: bool) -> bool:
    return (
        isinstance(now, torch.Tensor)
        and type.covers(TensorType.of(now))
        and now.device == device
        and records(now) == grad
    )
