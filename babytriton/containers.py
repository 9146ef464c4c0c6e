"""Tuples and dicts of users' classes, made again with other items in them."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def is_named_tuple(value: Any) -> bool:
    """Whether it is a ``NamedTuple``, which takes its fields one by one."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def sequence(kind: type, items: Sequence[Any]) -> Any:
    """A tuple or list of some class.

    Args:
        kind: the class; all but those of named tuples take one sequence, as torch's named results
            do, such as those of ``max(x, dim)``.
        items: of it.
    """
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return kind(*items) if named else kind(items)


@dataclass(frozen=True)
class DictKind:
    """What a dict is besides its items.

    Attributes:
        type: its class.
        mirrored: whether its items are its attributes as well, in ``vars(it)``.
        unset: names of the attributes besides, all of which are None, as those of fields are that
            were not given.
    """

    type: type[dict[Any, Any]]
    mirrored: bool = False
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: dict[Any, Any]) -> DictKind:
        """That of a dict; of one that holds more than its items, that of a plain dict."""
        kind = type(value)
        if kind is dict or issubclass(kind, collections.defaultdict):
            return PLAIN
        held = getattr(value, "__dict__", None) or {}
        if not held:
            return cls(kind)
        items = dict(dict.items(value))
        unset = tuple(name for name in held if name not in items)
        is_mirrored = len(unset) < len(held)
        if any(held[name] is not None for name in unset):
            return PLAIN
        if is_mirrored and any(held.get(key, held) is not item for key, item in items.items()):
            return PLAIN
        return cls(kind, is_mirrored, unset)

    def make(self, items: Mapping[Any, Any]) -> Any:
        """Such a dict of other items; no code of its class is run."""
        if self.type is dict:
            return dict(items)
        base: Any = dict
        if issubclass(self.type, collections.OrderedDict):
            base = collections.OrderedDict
        made = base.__new__(self.type)
        for key, item in items.items():
            base.__setitem__(made, key, item)
        if self.mirrored:
            vars(made).update(items)
        for name in self.unset:
            vars(made)[name] = None
        return made


PLAIN = DictKind(dict)
