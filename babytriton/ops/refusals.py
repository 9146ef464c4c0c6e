"""Why a call does not become part of the program. The frontend turns these into messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Unsupported(Exception):
    """A row does not cover this call; the message says why torch runs it instead."""


RANDOM = "it draws random numbers"
"""Why torch runs what draws them: from its own generator, whose next numbers the user knows."""


class Random(Unsupported):
    """The call draws random numbers, so that another run of it gives others."""

    def __init__(self) -> None:
        super().__init__(RANDOM)


class Mutation(Exception):
    """The call changes a tensor in a way that the language has not.

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


class MixedDevices(Exception):
    """The tensors of a call are on several devices, and nothing says where it runs."""


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


class Unavailable(Exception):
    """What the user's code names cannot be part of the program.

    Attributes:
        instead: what the user can write.
    """

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.instead = instead


class NoGradient(Exception):
    """Something on the way from an input to a result has no gradient.

    Attributes:
        name: of the row, or of the user's function.
        span: of the user's expression that it was made for.
    """

    def __init__(self, name: str, why: str, span: Any) -> None:
        super().__init__(why)
        self.name = name
        self.span = span


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


def reason(error: Exception) -> str:
    """What an exception of TVM's says, without where in TVM it was raised."""
    lines = [line for line in str(error).splitlines() if not line.startswith("#")]
    text = " ".join("\n".join(lines).split()) or type(error).__name__
    text = re.sub(
        r"^Check failed: .*?(?: is false| \([^()]* vs\. [^()]*\) ?): ", "", text, flags=re.DOTALL
    )
    return re.sub(r"ir\.Op\(.*?name=\"([^\"]+)\".*?support_level=\d+\)", r"\1", text)
