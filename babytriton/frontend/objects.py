"""Arguments that are neither tensors nor numbers: programs know them while they are compiled.

Functions, classes, modules, and objects of Python's classes, such as configurations. Each has
programs of its own, and what is read of it is watched as what is read outside the function is.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

_CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
)


def is_object(value: Any) -> bool:
    """Whether an argument is one of these: not what is used up by being gone through."""
    if isinstance(value, (*_CALLABLES, torch.nn.Module, enum.Enum)):
        return True
    kind = type(value)
    is_pythons = hasattr(value, "__dict__") or "__slots__" in vars(kind)
    return is_pythons and not hasattr(kind, "__next__") and not hasattr(kind, "__dlpack__")


def object_key(value: Any) -> Any:
    """What tells an object from others, hashable: Python makes a method anew at each look at it."""
    if isinstance(value, types.MethodType):
        return (types.MethodType, _Itself(value.__self__), object_key(value.__func__))
    if isinstance(value, types.FunctionType):  # reloading a module in a notebook replaces its code
        return (types.FunctionType, _Itself(value), value.__code__)
    return (type(value), _Itself(value))


def test_of(value: Any, place: str, know: Callable[[str, Any], str]) -> str:
    """What is true in Python where there is an object or none that is told from it.

    Args:
        value: the object.
        place: an expression for what is there.
        know: gives a variable for an object.
    """
    if isinstance(value, types.MethodType):
        owner, function = know("owner", value.__self__), know("function", value.__func__)
        is_method = f"type({place}) is {know('method', types.MethodType)}"
        return f"{is_method} and {place}.__self__ is {owner} and {place}.__func__ is {function}"
    return f"{place} is {know('itself', value)}"


def described(value: Any) -> str:
    """What an object is called in a message."""
    if isinstance(value, enum.Enum):
        return str(value)
    return getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"


class _Itself:
    """An object that equals none but itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
