"""What a jitted function was compiled for: the table that calls look into, and its contents."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.frontend.differences import changes, differences
from babytriton.frontend.signature import Signature, loosened
from babytriton.stages import Compiled
from babytriton.types import MemoryFormat

RECOMPILES = logging.getLogger("babytriton.recompiles")
# Heard where it is asked for, and not with all else that a program logs.
RECOMPILES.setLevel(logging.WARNING)


_MANY = 8
"""Programs of a function for objects among its arguments, of which there will be ever more."""


@dataclass(frozen=True, repr=False)
class Specialization:
    """One program that a jitted function has compiled.

    Attributes:
        function: its name.
        signature: the arguments it is for, such as ``x: f32[n, 4], k: 3``; a name stands for any
            size of 2 or more, the same wherever it is used.
        guards: what must hold of the sizes, such as ``n > 4``.
        target: what it was compiled for.
        kernels: how many kernels it has.
    """

    function: str
    signature: str
    guards: tuple[str, ...]
    target: str
    kernels: int

    @classmethod
    def of(cls, compiled: Compiled) -> Specialization:
        """What there is to say of a program."""
        lowered = compiled.scheduled.lowered
        sizes = lowered.lowering.sizes
        guards = () if sizes is None else tuple(text for text, _ in sizes.conditions.each)
        signature, target = str(compiled.signature), str(compiled.executable.target)
        return cls(lowered.name, signature, guards, target, len(compiled.kernels))

    def __repr__(self) -> str:
        where = f" where {' and '.join(self.guards)}" if self.guards else ""
        count = f"{self.kernels} kernel{'' if self.kernels == 1 else 's'}"
        return f"<{self.function}({self.signature}){where} for {self.target}: {count}>"


@dataclass(frozen=True)
class _Entry:
    compiled: Compiled
    call: Signature
    """The arguments of the call that it was compiled at."""
    dtype: torch.dtype
    """torch's default one at that time."""


class Specializations:
    """The programs of one function, found by the key of a call."""

    def __init__(self) -> None:
        self._by_key: dict[Any, list[Compiled]] = {}
        self._entries: list[_Entry] = []
        self._loose: list[tuple[bool, bool]] = []
        """Which loosened keys there are, those first that say more."""

    def __iter__(self) -> Iterator[Compiled]:
        return iter([entry.compiled for entry in self._entries])

    @property
    def newest(self) -> Compiled | None:
        """The one that was compiled last."""
        return self._entries[-1].compiled if self._entries else None

    def find(self, key: Any, leaves: Sequence[Any]) -> Compiled | None:
        """The program for a call.

        Args:
            key: of the call, with the shapes of its tensors.
            leaves: the tensors and floats of the call.
        """
        try:
            candidates = self._by_key.get(key, ())
        except TypeError:  # an argument that is not hashable: making one says which
            return None
        for compiled in candidates:
            if compiled.fits(leaves):
                return compiled
        if not self._loose:
            return None
        formats = [MemoryFormat.of(x) if isinstance(x, torch.Tensor) else None for x in leaves]
        # Expanded ones of any size are copied by all.
        has_parts = any(x is not None and x.gaps and not x.repeated for x in formats)
        for sizes, gaps in self._loose:
            for compiled in self._by_key.get(loosened(key, sizes, gaps), ()):
                # Parts of other tensors are for a program that has to copy them, or reads them.
                is_for = not (gaps and has_parts) or compiled.signature.copies_parts(formats)
                if is_for and compiled.fits(leaves):
                    return compiled
        return None

    def add(self, key: Any, compiled: Compiled, call: Signature) -> None:
        """Keep a program for the calls of a key, and those of other sizes where it takes them."""
        self._log(compiled, call)
        signature = compiled.signature
        loose = signature.is_symbolic, signature.copies
        if signature.is_symbolic and not signature.has_gaps:
            loose = True, True
        if any(loose):
            self._loose = sorted({*self._loose, loose})
            key = loosened(key, *loose)
        self._by_key.setdefault(key, []).append(compiled)
        self._entries.append(_Entry(compiled, call, torch.get_default_dtype()))
        if signature.objects():
            self._tell_many(compiled)

    def _tell_many(self, newest: Compiled) -> None:
        """Warn where one program after the other is made for other objects."""
        if sum(bool(each.signature.objects()) for each in self) == _MANY:
            function, names = newest.scheduled.lowered.name, ", ".join(newest.signature.objects())
            many = "%s: compiled %d times; if `%s` is another object at each call, keep one"
            RECOMPILES.warning(many, function, _MANY, names)

    def _log(self, compiled: Compiled, call: Signature) -> None:
        if not RECOMPILES.isEnabledFor(logging.INFO):
            return
        lowered = compiled.scheduled.lowered
        why = "; ".join(self._reasons(call)) if self._entries else "the first call"
        what = f"{lowered.name}({compiled.signature}) for {compiled.executable.target}"
        RECOMPILES.info("%s: %s", what, why)

    def _reasons(self, call: Signature) -> list[str]:
        """How a call differs from the most similar one before it."""
        found = [_differences(entry, call) for entry in reversed(self._entries)]
        return min(found, key=len) or ["a condition on its sizes does not hold"]


def _differences(entry: _Entry, call: Signature) -> list[str]:
    found = differences(call, entry.call, entry.compiled.signature)
    found += changes(entry.compiled.guards)
    if entry.dtype != torch.get_default_dtype():
        found.append(f"torch's default dtype: {torch.get_default_dtype()}, before {entry.dtype}")
    return found
