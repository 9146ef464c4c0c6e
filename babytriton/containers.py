"""Tuples and dicts of users' classes, made again with other items in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def sequence(kind: type, items: Sequence[Any]) -> Any:
    """A tuple or list of some class.

    Args:
        kind: the class; a ``NamedTuple`` takes its fields one by one, others take one sequence, as
            torch's named results do, such as those of ``max(x, dim)``.
        items: of it.
    """
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def mapping(kind: type[dict[Any, Any]], items: Mapping[Any, Any]) -> Any:
    """A dict of some class, as it is once each item was set in turn.

    Args:
        kind: the class, whose ``__init__`` is not called, as it may take anything.
        items: of it.

    Returns:
        A plain dict, if a class cannot be made so.
    """
    if kind is dict:
        return dict(items)
    made = kind.__new__(kind)
    try:
        for key, item in items.items():
            made[key] = item
    except Exception:  # whatever the class needs that its `__init__` would have set
        return dict(items)
    return made
