"""The kinds of source that what was compiled can show, and writing them to files."""

from __future__ import annotations

from typing import Protocol

from babytriton import building, dumping
from babytriton.config import CONFIG
from babytriton.frontend.signature import Signature
from babytriton.targets import Target

KINDS = {
    "cpu": ("ast", "python", "relax", "tir", "llvm", "asm"),
    "cuda": ("ast", "python", "relax", "tir", "cuda", "ptx", "sass", "llvm", "asm"),
    **{kind: ("ast", "python", "relax", "tir", kind) for kind in building.LANGUAGES},
    "rocm": ("ast", "python", "relax", "tir", "llvm", "asm"),
}
"""The kinds of source that a function for each kind of target can show."""

SOURCE_KINDS = frozenset(kind for kinds in KINDS.values() for kind in kinds)


class Shown(Protocol):
    """What was compiled, as far as its sources go."""

    @property
    def signature(self) -> Signature: ...

    @property
    def target(self) -> Target: ...

    @property
    def source_kinds(self) -> tuple[str, ...]: ...

    def source(self, kind: str | None = None, *, full: bool = False) -> str: ...


def dump(name: str, compiled: Shown) -> None:
    """Write the stages to files, where the environment asks for it."""
    if CONFIG.dump is not None:
        signature = f"{name}({compiled.signature}) for {compiled.target}"
        kinds = compiled.source_kinds
        dumping.dump(
            CONFIG.dump, name, signature, kinds, lambda kind: compiled.source(kind, full=True)
        )


def default_kind(target: Target) -> str:
    """The kind of source that a function for a target shows first."""
    return target.kind if target.kind in KINDS[target.kind] else "llvm"
