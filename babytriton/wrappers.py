"""Kinds of tensors that have others inside, and what runs calls of compiled functions with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from babytriton.ops.trees import leaves_in

Handler = Callable[..., Any]


class Wrappers:
    """The kinds that there are."""

    def __init__(self) -> None:
        self._known: tuple[tuple[str, str, Callable[[], Handler]], ...] = ()

    def register(self, module: str, kind: str, load: Callable[[], Handler]) -> None:
        """Have calls run by something else where an argument is of a kind.

        Args:
            module: that has the kind: nothing is looked for before somebody has imported it.
            kind: its name there.
            load: gives what runs a call, of the function and of the values of its parameters.
        """
        self._known += ((module, kind, load),)

    def handler(self, values: Sequence[Any]) -> Handler | None:
        """What runs a call with these values; ``None`` where all tensors are plain."""
        for module, name, load in self._known:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and leaves_in(values, kind):
                return load()
        return None


WRAPPERS = Wrappers()
"""Those of this process, which the integrations register."""
