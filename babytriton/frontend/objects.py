"""Arguments that are neither tensors nor numbers: programs know them while they are compiled.

Functions, classes, modules, and objects of Python's classes, such as configurations. What is read
of one is watched as what is read of objects outside the function is.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from typing import Any

import torch

_CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
)
_CONSTANTS = (bool, int, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)


def is_object(value: Any) -> bool:
    """Whether an argument is one of these: not what is used up by being gone through."""
    if isinstance(value, (*_CALLABLES, torch.nn.Module, enum.Enum)):
        return True
    kind = type(value)
    is_pythons = hasattr(value, "__dict__") or "__slots__" in vars(kind)
    return is_pythons and not hasattr(kind, "__next__") and not hasattr(kind, "__dlpack__")


def object_key(value: Any) -> Any:
    """What two objects share that programs are the same for, hashable.

    Functions without variables from around them are as good as others of their code, and so are
    objects of a dataclass with constants for fields as others with the same.
    """
    kind = type(value)
    if isinstance(value, types.FunctionType):
        own = (value.__defaults__ or (), tuple(sorted((value.__kwdefaults__ or {}).items())))
        constants = _constant(own)
        if value.__closure__ is None and not vars(value) and constants is not None:
            return (kind, value.__code__, _Itself(value.__globals__), constants)
        return (kind, _Itself(value), value.__code__)
    fields = _fields(value)
    return (kind, _Itself(value) if fields is None else fields)


def is_constant(value: Any) -> bool:
    """Whether all that an object has are constants."""
    return isinstance(value, enum.Enum) or _fields(value) is not None


def _fields(value: Any) -> Any:
    """The fields of an object of a dataclass that has constants, and nothing else."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    names = [field.name for field in dataclasses.fields(value)]
    if getattr(value, "__dict__", {}).keys() != set(names):
        return None
    return _constant(tuple(getattr(value, name) for name in names))


def _constant(value: Any) -> Any:
    """A constant so that it equals those that mean the same alone; None for what is none."""
    if type(value) is float:
        return (float, value.hex())
    if isinstance(value, tuple):
        items = tuple(map(_constant, value))
        return None if None in items else (type(value), items)
    return (type(value), value) if isinstance(value, _CONSTANTS) else None


class _Itself:
    """An object that equals none but itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
