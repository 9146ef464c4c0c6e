"""What is alike in structure: answers about one of it are answers about all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tvm_ffi

T = TypeVar("T")


class Alike(Generic[T]):
    """Values by programs, or parts of them, one for all that are alike in structure.

    Args:
        free: whether variables of what is outside may be other ones, of the same types.
    """

    def __init__(self, free: bool = False) -> None:
        self._free = free
        self._known: dict[int, list[tuple[Any, T]]] = {}

    def first(self, key: Any, value: T) -> T:
        """The value of the first key that was like this one, which this may be."""
        return self.answer(key, lambda: value)

    def answer(self, key: Any, ask: Callable[[], T]) -> T:
        """What was found out about a key that was like this one; asked for if there was none."""
        likely = self._known.setdefault(tvm_ffi.structural_hash(key, map_free_vars=self._free), [])
        for other, value in likely:
            if tvm_ffi.structural_equal(key, other, map_free_vars=self._free):
                return value
        value = ask()
        likely.append((key, value))
        return value
