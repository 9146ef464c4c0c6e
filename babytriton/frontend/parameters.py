"""The parameters of a function, and what a call gives them."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from babytriton import errors
from babytriton.frontend.callee import name_of, signature_of


class Absent:
    """Stands for an argument that was not given, where the parameter's own default applies."""

    def __repr__(self) -> str:
        return "its default"


ABSENT = Absent()


class Parameters:
    """The parameters of a function, and how a call's arguments bind to them.

    Args:
        name: of the function.
        signature: of it.
        fills: whether defaults are filled in.
    """

    def __init__(self, name: str, signature: inspect.Signature, fills: bool = True) -> None:
        self._name = name
        self._signature = signature
        self._fills = fills
        parameters = self._signature.parameters.values()
        self.names = tuple(self._signature.parameters)
        simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        self._simple = all(parameter.kind in simple for parameter in parameters)
        self.defaults = tuple(parameter.default for parameter in parameters)
        """Of each parameter, in order; ``inspect.Parameter.empty`` for none."""

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> Parameters:
        """Those of a function, or of a module's ``forward``."""
        # The hooks of a module see what was given, without defaults.
        return cls(name_of(fn), signature_of(fn), not isinstance(fn, torch.nn.Module))

    @classmethod
    def named(cls, name: str, names: Sequence[str]) -> Parameters:
        """Those of a program that no Python function stands for."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return cls(name, inspect.Signature([inspect.Parameter(each, kind) for each in names]))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The value of each parameter, in order, defaults filled in; for a module, ``ABSENT``.

        Raises:
            TypeError: Python would refuse the call as well.
        """
        if self._simple and not kwargs and len(args) == len(self.names):
            return args
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.BadCall(None, self._name, str(error)).error() from None
        if not self._fills:
            return [bound.arguments.get(name, ABSENT) for name in self.names]
        bound.apply_defaults()
        return list(bound.arguments.values())

    def call(self, fn: Callable[..., Any], values: Sequence[Any]) -> Any:
        """What a function of these parameters gives for their values."""
        given = {name: x for name, x in zip(self.names, values) if x is not ABSENT}
        bound = inspect.BoundArguments(self._signature, OrderedDict(given))
        return fn(*bound.args, **bound.kwargs)
