"""Settings from the environment, read once when the package is imported."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

TOPICS = ("recompiles",)
"""What ``BABYTRITON_LOG`` may name."""


@dataclass(frozen=True)
class Config:
    """What the environment asks for.

    Attributes:
        interpret: ``BABYTRITON_INTERPRET=1`` runs the undecorated Python function instead of
            compiling it, for debugging with prints and breakpoints.
        log: ``BABYTRITON_LOG=recompiles`` says on standard error what is compiled and why; it is
            the logger ``babytriton.recompiles``. Several topics are separated by commas.
        nvcc: ``BABYTRITON_NVCC=1`` has nvcc compile for GPUs, in place of NVRTC.
        dump: ``BABYTRITON_DUMP=folder`` writes every stage of every compile to files there.
    """

    interpret: bool
    log: tuple[str, ...] = ()
    dump: Path | None = None
    nvcc: bool = False

    @classmethod
    def from_environment(cls) -> Config:
        """The settings as the environment has them now.

        Raises:
            ValueError: it names a topic to log that there is not.
        """
        log = tuple(part.strip() for part in os.environ.get("BABYTRITON_LOG", "").split(","))
        unknown = set(log) - {*TOPICS, ""}
        if unknown:
            raise ValueError(f"BABYTRITON_LOG: {min(unknown)!r} is none of {', '.join(TOPICS)}")
        interpret, nvcc = (
            os.environ.get(f"BABYTRITON_{name}", "0") not in ("", "0")
            for name in ("INTERPRET", "NVCC")
        )
        folder = os.environ.get("BABYTRITON_DUMP", "")
        dump = Path(folder) if folder else None
        return cls(interpret, tuple(filter(None, log)), dump, nvcc)

    def start_logging(self) -> None:
        """Let the topics that the environment names be heard on standard error."""
        for topic in self.log:
            logger = logging.getLogger(f"babytriton.{topic}")
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)


CONFIG = Config.from_environment()
