"""What an object holds, to tell at a later call whether it still does.

An object from outside is held by identity, and what a function reads of it by itself. Where plain
Python is handed the object, what it reads there is not seen: it is all of it, then. Tensors are
held by identity all the same, as a program reads their numbers anew at each call.
"""

from __future__ import annotations

import collections
import enum
import types
from typing import Any

import torch

_MOST = 10_000
"""Parts of an object that are looked at; others are held by identity."""

_THEMSELVES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)
"""What is the same for as long as it is there."""

_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


class _Itself:
    """An object, which equals no other one."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def changes(value: Any) -> bool:
    """Whether an object holds what may become something else.

    Modules of networks are looked at by what is read of them, as they hold very much.
    """
    if isinstance(value, (*_THEMSELVES, torch.nn.Module)) or _is_tvms(value):
        return False
    return _is_array(value) or _attributes(value) is not None


def state_of(value: Any) -> Any:
    """What an object holds, its parts included; equal for as long as these are."""
    return _state(value, {})


def _state(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, float):
        return type(value), value.hex()  # NaN is not equal to itself, and 0.0 equals -0.0
    if value is None or isinstance(value, (bool, int, complex, str, bytes)):
        return type(value), value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, (torch.Tensor, *_THEMSELVES)) or _is_tvms(value) or len(seen) > _MOST:
        return _Itself(value)
    if _is_array(value):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        items = [(_state(k, seen), _state(x, seen)) for k, x in dict.items(value)]
        return type(value), items
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(value)
    if isinstance(value, _CONTAINERS):
        return type(value), [_state(x, seen) for x in value]
    attributes = _attributes(value)
    if attributes is None:
        return _Itself(value)
    return type(value), [(name, _state(x, seen)) for name, x in attributes.items()]


def _attributes(value: Any) -> dict[str, Any] | None:
    """What an object holds by name; None for one that can hold nothing so."""
    kinds = [kind for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    if not kinds and not hasattr(value, "__dict__"):
        return None
    found = dict(getattr(value, "__dict__", {}))
    for kind in kinds:
        slots = vars(kind)["__slots__"]
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _is_array(value: Any) -> bool:
    """Whether it is an array of NumPy's, which need not be there."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _is_tvms(value: Any) -> bool:
    return type(value).__module__.startswith("tvm.")
