"""Plain Python on numbers that depend on symbolic sizes.

torch's symbolic numbers compute as Python's do, and say what they are when asked. Most of Python
asks at once. So what is known to compute with them gets them as they are; anything else gets the
numbers of this call, and the program is then one for sizes that give those numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from babytriton.ops.sizes import SYMBOLIC, constant, symbolic_in
from babytriton.ops.trees import map_leaves


def python(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call plain Python, whose arguments may hold symbolic numbers."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, torch.Size) and getattr(fn, "__name__", "") == "numel":
        return math.prod(owner)  # torch's own wants numbers
    if not symbolic_in((args, kwargs)):
        return fn(*args, **kwargs)
    if _takes_symbolic(fn):
        try:
            return _spelled(fn)(*args, **kwargs)
        except TypeError:  # not for numbers such as these, or a bug of the user's
            pass
    args, kwargs = as_constants((args, kwargs))
    return fn(*args, **kwargs)


def as_constants(tree: Any) -> Any:
    """Nested tuples, lists, dicts and slices with constants for their symbolic numbers."""
    return map_leaves(tree, SYMBOLIC, constant)


def _isinstance(item: Any, kinds: Any) -> bool:
    return isinstance(_sample(item), kinds)


def _type(item: Any) -> type:
    return type(_sample(item))


def _sample(item: Any) -> Any:
    """Some number of the kind that a symbolic one is."""
    samples: tuple[tuple[type, Any], ...] = tuple(zip(SYMBOLIC, (2, 0.5, True)))
    return next((sample for kind, sample in samples if isinstance(item, kind)), item)


def _extreme(fn: Callable[[Any, Any], Any], python: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        items = args if len(args) > 1 else list(args[0])
        if kwargs or not all(isinstance(x, (int, float, *SYMBOLIC)) for x in items):
            return python(*args, **kwargs)
        return functools.reduce(fn, items)

    return apply


_SPELLED: dict[Any, Callable[..., Any]] = {
    float: torch.sym_float,
    int: torch.sym_int,
    isinstance: _isinstance,
    # Not in torch's stubs.
    math.sqrt: lambda x: torch._sym_sqrt(x),  # type: ignore[attr-defined]
    max: _extreme(torch.sym_max, max),
    min: _extreme(torch.sym_min, min),
    type: _type,
}
"""What Python's functions are called for symbolic numbers, where theirs would want the number."""

_FUNCTIONS = (
    *(abs, all, any, bool, dict, divmod, enumerate, filter, iter, len, list, map, next, pow),
    *(reversed, slice, sorted, sum, tuple, zip, torch.Size),
    *(math.ceil, math.floor, math.prod, math.trunc),
)
_MODULES = (
    *("operator", "_operator", "functools", "_functools", "itertools"),
    "babytriton.frontend.iteration",
)


def _spelled(fn: Any) -> Any:
    return _SPELLED.get(fn, fn) if type(fn).__hash__ is not None else fn


def _takes_symbolic(fn: Any) -> bool:
    if isinstance(getattr(fn, "__self__", None), (list, dict, tuple)):
        return True
    if any(fn is known for known in (*_FUNCTIONS, *_SPELLED)):
        return True
    module = getattr(fn, "__module__", None)
    # A class of the user's keeps them as they are.
    return module in _MODULES or (isinstance(fn, type) and module != "builtins")
