"""Why a call does not become part of the program. The frontend turns these into messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from babytriton.ops.table import Callee


class Unsupported(Exception):
    """A row does not cover this call; the message says why torch runs it instead."""


class Mutation(Exception):
    """The call writes to one of its arguments.

    Attributes:
        instead: what the user can write.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what)
        self.instead = instead


class UnsupportedDtype(Exception):
    """A tensor of the program would have a dtype that kernels cannot hold."""


class WrongDevice(Exception):
    """A call asks for a tensor on another device than the program's."""


class IllTyped(Exception):
    """torch refuses the call; the message is torch's own."""


class NeedsData(IllTyped):
    """torch cannot type the call without the numbers in a tensor."""


class Related(Exception):
    """Sizes that have names of their own turn out to be one, or constant: start over with that.

    Attributes:
        sizes: for a name, the other name or the number that it is the same as.
    """

    def __init__(self, sizes: Mapping[str, str | int]) -> None:
        super().__init__(", ".join(f"{name} = {size}" for name, size in sizes.items()))
        self.sizes = sizes


class RowError(Exception):
    """A row built something else than torch's type of its result: a bug of the table."""


def refuse_mutation(fn: Callee, kwargs: Mapping[str, Any]) -> None:
    """Raise :class:`Mutation` for callables that write to an argument."""
    name = getattr(fn, "__name__", "")
    if kwargs.get("out") is not None:
        raise Mutation("out=", "leave out= out and use the result")
    if kwargs.get("inplace") is True:
        raise Mutation("inplace=True", "leave inplace= out and use the result")
    in_place = name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_")
    if in_place or name in ("__setitem__", "setitem"):
        raise Mutation(name, "compute a new tensor: y = x + 1 instead of x.add_(1)")
