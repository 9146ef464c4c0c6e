"""How control leaves a block of statements: past its end, or by return, break or continue."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from babytriton.ops.value import Scalar


@dataclass(frozen=True)
class Exits:
    """The ways out of a block other than past its end.

    Attributes:
        flags: for "return", "break" and "continue" whether control left that way: ``True``, or a
            bool of the run time. At most one of them is true.
        value: what a return gives.
        node: the return statement.
        sure: whether control leaves by one of them, if it is open by which.
    """

    flags: dict[str, bool | Scalar] = field(default_factory=dict)
    value: Any = None
    node: ast.AST | None = None
    sure: bool = False

    @property
    def always(self) -> bool:
        """Whether control never gets past the end of the block."""
        return self.sure or any(flag is True for flag in self.flags.values())

    @property
    def open(self) -> list[Scalar]:
        """The flags that are known only at run time."""
        return [flag for flag in self.flags.values() if isinstance(flag, Scalar)]

    def without(self, kind: str) -> Exits:
        """The same, where leaving by ``kind`` ends here."""
        rest = {key: flag for key, flag in self.flags.items() if key != kind}
        return Exits(rest, self.value, self.node, self.sure and kind not in self.flags)

    def surely(self) -> Exits:
        """The same, where it is known that control has left."""
        flags: dict[str, bool | Scalar] = dict(self.flags)
        if len(flags) == 1:
            flags = dict.fromkeys(flags, True)
        return Exits(flags, self.value, self.node, True)


FALLS = Exits()
"""Control gets past the end of the block."""
