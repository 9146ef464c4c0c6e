"""The symbol table: which value a name stands for, inside a function and around it."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from babytriton.diagnostics import Diagnostic, Span
from babytriton.frontend.captures import Place


@dataclass(frozen=True)
class Unusable:
    """What a name stands for that has no one value here; reading it is an error.

    Attributes:
        diagnostic: the message, for the place that reads it.
        arguments: of the function; if they were constants, it would have one value.
    """

    diagnostic: Callable[[Span], Diagnostic]
    arguments: frozenset[str] = frozenset()


class Scope:
    """The names of one function body.

    Args:
        names: bound so far, the parameters to begin with.
        outer: the scope of the function that this one is written in, if that one is being
            compiled as well.
        fn: the Python function, for its closure cells and globals; an outer scope has its own.
        is_comprehension: whether it is that of a comprehension whose items are all computed where
            it stands, and the outer one what that is in.
    """

    def __init__(
        self,
        names: dict[str, Any],
        outer: Scope | None = None,
        fn: types.FunctionType | None = None,
        *,
        is_comprehension: bool = False,
    ) -> None:
        self.names = names
        self.outer = outer
        self.fn = fn
        self.is_comprehension = is_comprehension
        self.places: dict[str, Span] = {}
        """Where each name was bound last."""

    def bind(self, name: str, value: Any, place: Span | None = None) -> None:
        """Let a name stand for a value from here on."""
        self.names[name] = value
        if place is not None:
            self.places[name] = place

    @property
    def of_function(self) -> Scope:
        """That of the function, of which a comprehension has its own: ``:=`` binds names in it."""
        if not self.is_comprehension or self.outer is None:
            return self
        return self.outer.of_function

    def unbind(self, name: str) -> None:
        """Forget a name; ``KeyError`` if it is not bound."""
        del self.names[name]

    def local(self, name: str) -> Any:
        """The value bound to a name inside the functions being compiled.

        Raises:
            KeyError: it is bound nowhere inside.
        """
        if name in self.names:
            return self.names[name]
        if self.outer is None:
            raise KeyError(name)
        return self.outer.local(name)

    def globals(self) -> dict[str, Any]:
        """The names of the module that the function stands in."""
        if self.fn is not None:
            return self.fn.__globals__
        return {} if self.outer is None else self.outer.globals()

    def place(self, name: str) -> Place | None:
        """Where a name is found around the function: a closure cell, a global, a builtin."""
        if self.fn is None:
            return None if self.outer is None else self.outer.place(name)
        cells = dict(zip(self.fn.__code__.co_freevars, self.fn.__closure__ or ()))
        if name in cells:
            return Place.of_cell(cells[name], name)
        scope = self.fn.__globals__
        if name in scope:
            return Place.of_global(scope, name)
        return Place.of_builtin(scope, name) if hasattr(builtins, name) else None
