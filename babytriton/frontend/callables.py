"""What is called: something of torch's, of Python's or of the user's."""

from __future__ import annotations

import sys
import types
from typing import Any

MUTATORS = frozenset(
    {"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"}
    | {"update", "setdefault", "popitem", "add", "discard"}
    | {"appendleft", "extendleft", "popleft", "rotate"}
)
"""Methods of Python's containers that change these."""

_PYTHON_MODULES = ("builtins", "collections", "dataclasses", "functools", "itertools", "math")


def takes_values(fn: Any) -> bool:
    """Whether plain Python may be handed tensors of the program."""
    if isinstance(fn, type):
        return not module_of(fn).startswith(("torch", "numpy"))
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, (list, dict, tuple, str, set)):
        return True
    return module_of(fn) in (*_PYTHON_MODULES, "_functools", "_operator", "operator")


def module_of(fn: Any) -> str:
    """The module that a callable is of, by name; empty for none."""
    return str(getattr(fn, "__module__", None) or "")


def belongs_to_torch(fn: Any) -> bool:
    """Whether it is one of torch's functions or methods."""
    if isinstance(fn, type):
        return False
    name = module_of(fn)
    if name == "torch" or name.startswith("torch."):
        return not name.startswith("torch.testing")
    return isinstance(fn, (types.BuiltinFunctionType, types.MethodDescriptorType)) and (
        "torch" in type(getattr(fn, "__self__", None)).__module__
        or "torch" in getattr(getattr(fn, "__objclass__", None), "__module__", "")
    )


def is_users(fn: types.FunctionType) -> bool:
    """Whether a function is the user's own, so that what it reads from outside is watched."""
    top = module_of(fn).partition(".")[0]
    return top not in sys.stdlib_module_names and "site-packages" not in fn.__code__.co_filename


def is_hashable(fn: Any) -> bool:
    """Whether it can be looked up in a table."""
    return getattr(type(fn), "__hash__", None) is not None


def root(fn: Any) -> str:
    """The package that a function is of."""
    return module_of(fn).partition(".")[0].removeprefix("_")
