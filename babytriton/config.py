"""Settings from the environment, read once when the package is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """What the environment asks for.

    Attributes:
        interpret: ``BABYTRITON_INTERPRET=1`` runs the undecorated Python function instead of
            compiling it, for debugging with prints and breakpoints.
    """

    interpret: bool

    @classmethod
    def from_environment(cls) -> Config:
        """The settings as the environment has them now."""
        return cls(interpret=os.environ.get("BABYTRITON_INTERPRET", "0") not in ("", "0"))


CONFIG = Config.from_environment()
