"""Typing calls without loading what torch's meta kernels import and then have no use for.

Some of them ask to be hidden from torch.compile, and for that import all of it; nearly all ask
whether a number is one of sympy's, and whether a size is symbolic. Loading that took a second and a
half at the first call of a process, and half a second. As long as nothing else has loaded a module,
no object can be one of its objects, and there is nothing to hide from.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

_SHAPES = "torch.fx.experimental.symbolic_shapes"


@contextmanager
def unneeded() -> Iterator[None]:
    """In this context those modules are loaded only for more than the above."""
    standins = [_StandIn(name, make) for name, make in _MAKERS.items() if name not in sys.modules]
    for standin in standins:
        standin.put()
    try:
        yield
    finally:
        for standin in standins:
            standin.remove()


class _StandIn(ModuleType):
    """A module that is not loaded, but for a few attributes; any other one loads it.

    Who keeps it, such as another thread that imports the module meanwhile, has the module: what is
    asked of it, and set, is the module's own.

    Args:
        name: of the module.
        make: what makes each of these attributes.
    """

    def __init__(self, name: str, make: Mapping[str, Callable[[_StandIn], Any]]) -> None:
        super().__init__(name)
        vars(self).update(__spec__=_spec(name), _make=make)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and _spec(self.__name__).submodule_search_locations is None:
            raise AttributeError(name)  # of packages alone
        # Not kept: once the module is loaded, its own one is asked for.
        if self.loaded() is None and name in self._make:
            return self._make[name](self)
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.load(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self.load())

    def put(self) -> None:
        """Stand in for the module, also where its package has it as an attribute."""
        # Another thread may be importing it by now.
        if sys.modules.setdefault(self.__name__, self) is self:
            package, name = self._place()
            if package is not None:
                setattr(package, name, self)

    def remove(self) -> None:
        """Stand in for nothing any more."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        package, name = self._place()
        if package is not None and vars(package).get(name) is self:
            delattr(package, name)

    def loaded(self) -> ModuleType | None:
        """The module, if it is loaded."""
        found = sys.modules.get(self.__name__)
        return None if isinstance(found, _StandIn) else found

    def load(self) -> ModuleType:
        """The module, which is loaded now at the latest."""
        self.remove()
        return importlib.import_module(self.__name__)

    def _place(self) -> tuple[ModuleType | None, str]:
        package, _, name = self.__name__.rpartition(".")
        return sys.modules.get(package), name


@cache
def _spec(name: str) -> Any:
    """What the import system knows of a module, which it need not load for that."""
    return importlib.util.find_spec(name)


class _ClassOf:
    """A class of a module: nothing is one of its objects before the module is loaded.

    Args:
        name: of the class.
        module: that has it.
    """

    def __init__(self, name: str, module: _StandIn) -> None:
        self._name, self._module = name, module

    def __instancecheck__(self, value: Any) -> bool:
        return self._module.loaded() is not None and isinstance(value, self._own)

    def __subclasscheck__(self, kind: type) -> bool:
        return self._module.loaded() is not None and issubclass(kind, self._own)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (self._own,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs)

    @property
    def _own(self) -> Any:
        return getattr(self._module.load(), self._name)


def _disable(module: _StandIn) -> Any:
    """torch.compiler.disable: a function that is hidden from the compiler once there is one."""

    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if fn is None:
            return functools.partial(disable, recursive=recursive, **options)
        hidden = None

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal hidden
            loaded: Any = module.loaded()
            if hidden is None and loaded is not None:
                hidden = loaded.disable(fn, recursive, **options)
            return (hidden or fn)(*args, **kwargs)

        return call

    return disable


def _plain(name: str, of_plain: Callable[..., Any]) -> Callable[[_StandIn], Any]:
    """A function that needs its module for more than Python's own numbers."""

    def make(module: _StandIn) -> Any:
        def function(*args: Any) -> Any:
            if all(map(_is_plain, args)):
                return of_plain(*args)
            return getattr(module.load(), name)(*args)

        return function

    return make


def _is_plain(arg: Any) -> bool:
    return all(map(_is_plain, arg)) if isinstance(arg, (tuple, list)) else type(arg) in (bool, int)


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two sizes or two shapes are, of which one may be a list."""
    return tuple(one) == tuple(other) if isinstance(one, (tuple, list)) else bool(one == other)


def _joined(join: Callable[[Any, Any], Any], *conditions: Any) -> Any:
    return functools.reduce(join, conditions)


def _itself(number: Any) -> Any:
    return number


_OF_PLAIN: Mapping[str, Callable[..., Any]] = {
    "expect_true": _itself,
    "guard_or_false": _itself,
    "guard_or_true": _itself,
    "guard_size_oblivious": _itself,
    "guarding_hint_or_throw": _itself,
    "statically_known_true": _itself,
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": functools.partial(_joined, operator.and_),
    "sym_or": functools.partial(_joined, operator.or_),
    "sym_eq": _are_equal,
}

_MAKERS: Mapping[str, Mapping[str, Callable[[_StandIn], Any]]] = {
    "torch._dynamo": {"disable": _disable},
    "sympy": {"Basic": functools.partial(_ClassOf, "Basic")},
    _SHAPES: {name: _plain(name, function) for name, function in _OF_PLAIN.items()},
}
