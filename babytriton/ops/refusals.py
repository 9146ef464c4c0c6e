"""Why a call does not become part of the program. The frontend turns these into messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from babytriton.ops.table import Callee
from babytriton.ops.value import DataDependent, NeedsConstant


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


class Unavailable(Exception):
    """What the user's code names cannot be part of the program.

    Attributes:
        instead: what the user can write.
    """

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.instead = instead


class RowFailed(Exception):
    """A row that user code registered went wrong.

    Attributes:
        name: of what it was registered for.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class RowError(Exception):
    """A row built something else than torch's type of its result: a bug of the table."""


REFUSALS: tuple[type[Exception], ...] = (
    IllTyped,
    Mutation,
    RowError,
    RowFailed,
    Unavailable,
    Unsupported,
    UnsupportedDtype,
    WrongDevice,
    DataDependent,
    NeedsConstant,
    RecursionError,
)
"""What the frontend turns into messages."""


def reason(error: Exception) -> str:
    """What an exception of TVM's says, without where in TVM it was raised."""
    lines = [line for line in str(error).splitlines() if not line.startswith("#")]
    text = " ".join("\n".join(lines).split()) or type(error).__name__
    text = re.sub(
        r"^Check failed: .*?(?: is false| \([^()]* vs\. [^()]*\) ?): ", "", text, flags=re.DOTALL
    )
    return re.sub(r"ir\.Op\(.*?name=\"([^\"]+)\".*?support_level=\d+\)", r"\1", text)


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
