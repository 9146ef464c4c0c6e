"""What an object holds, to tell at a later call whether it still does.

An object from outside is held by identity, and what a function reads of it by itself. Where plain
Python is handed the object, what it reads there is not seen: it may be any number or text of it.
Tensors and modules are left out: a program reads these at each call, by what it does with them.
"""

from __future__ import annotations

import builtins
import collections
import enum
import operator
import types
from collections.abc import Callable
from typing import Any

_MOST = 200
"""Parts of an object that are looked at: of what holds more, Python reads little as a rule."""

_DEEPEST = 8
"""Objects within each other that are looked at."""

_LARGEST = 1 << 16
"""Bytes of an array that are compared at each call; a larger one is the same while it is there."""

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), enum.Enum)

_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)

_SPECIAL: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((bool, operator.truth, operator.not_), ("__bool__", "__len__")),
    operator.eq: ("__eq__",),
    operator.ne: ("__eq__", "__ne__"),
    operator.contains: ("__contains__", "__iter__"),
}
"""Methods that functions of Python call; an object that has none of its own is not looked into."""

_BLIND = (
    *(isinstance, issubclass, type, id, callable, hasattr, getattr, builtins.__import__),
    *(operator.is_, operator.is_not, operator.getitem),
)
"""What does not look into objects, or whose result is watched by itself."""


def is_blind(fn: Callable[..., Any]) -> bool:
    """Whether a function of Python does not look into what it is given."""
    return any(fn is each for each in _BLIND)


def looks_into(fn: Callable[..., Any], value: Any) -> bool:
    """Whether a function of Python may read what an object holds, and that may change."""
    if is_blind(fn):
        return False
    if is_array(value):
        return True
    names = next((names for each, names in _SPECIAL.items() if each is fn), None)
    kinds = type(value).__mro__[:-1]
    if names is not None and not any(name in vars(kind) for kind in kinds for name in names):
        return False
    return _holds(value)


def state_of(value: Any) -> Any:
    """The numbers and texts that an object holds; equal for as long as these are.

    None where that cannot be told, or would take long at each call.
    """
    if is_array(value):
        few = value.nbytes <= _LARGEST
        return (value.dtype.str, value.shape, value.tobytes()) if few else None
    parts: list[Any] = []
    try:
        _add(value, parts, set(), 0)
    except Exception:  # too much, or whatever another thread does to it meanwhile
        return None
    return parts


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy's, which need not be there."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _add(value: Any, parts: list[Any], seen: set[int], depth: int) -> None:
    """Add what a value holds to the parts.

    Raises:
        ValueError: it is too much.
    """
    size = len(value) if isinstance(value, _CONTAINERS) else 1
    if len(parts) + size > _MOST or depth > _DEEPEST:
        raise ValueError
    if isinstance(value, float):
        parts.append(value.hex())  # NaN is not equal to itself, and 0.0 equals -0.0
    elif isinstance(value, _CONSTANTS):
        parts.append((type(value), value))
    elif id(value) in seen:
        parts.append(None)
    elif isinstance(value, _CONTAINERS) or _holds(value):
        seen.add(id(value))
        parts.append(type(value))
        for part in _parts(value):
            _add(part, parts, seen, depth + 1)


def _parts(value: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(value, dict):
        found += [part for pair in dict.items(value) for part in pair]
    elif isinstance(value, (set, frozenset)):
        found.append(str(sorted(map(repr, value))))
    elif isinstance(value, _CONTAINERS):
        found += value
    return found + [part for pair in _attributes(value).items() for part in pair]


def _holds(value: Any) -> bool:
    """Whether an object is one of a class of the user's, with attributes."""
    kind = type(value)
    is_itself = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)
    root = kind.__module__.partition(".")[0]
    if isinstance(value, is_itself) or root in ("tvm", "logging", "threading", "unittest"):
        return False
    # Of torch's own, optimizers and what sets their rates are there for their numbers.
    if root == "torch" and not kind.__module__.startswith("torch.optim."):
        return False
    if any(base.__module__.startswith("torch.nn") for base in kind.__mro__):
        return False
    return any("__slots__" in vars(base) or "__dict__" in vars(base) for base in kind.__mro__[:-1])


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds by name, without any code of its class."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # nothing is there yet
                    continue
    return found
