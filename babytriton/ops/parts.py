"""Parts of rows that are rows of their own: they have gradients that no row of torch's has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from babytriton.ops.value import values_in

Part = TypeVar("Part", bound=Callable[..., Any])


def part(fn: Part) -> Part:
    """A plain torch function, as a callable that the operator table has a row of."""

    @functools.wraps(fn)
    def emitted(*args: Any, **kwargs: Any) -> Any:
        values = values_in((args, kwargs))
        # Without values it is typed, by torch on meta tensors.
        return values[0].emitter.call(emitted, args, kwargs) if values else fn(*args, **kwargs)

    return cast(Part, emitted)


def plain(emitted: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a part was made of, which emits what it calls."""
    found: Callable[..., Any] = vars(emitted)["__wrapped__"]
    return found
