"""Memory that several tensors of the program share: what is written to one is read from all.

Relax has no memory to write into. So a storage holds its contents as an expression. What reads and
writes them is in ``memory.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from tvm.ir import Expr

from babytriton.ops.sizes import is_known


class Storage:
    """The contents of one piece of memory.

    Attributes:
        expr: the contents, as the tensor that the memory was made for.
        meta: that tensor's type and layout; it keeps torch's own storage alive, by whose identity
            the memory is known.
        version: another object after each write.
        viewed_flat: whether a tensor views it that torch would have made a copy of another
            layout for, as ``reshape`` does of a transpose.
        writers: the sides (see :class:`Stored`) that it was written to from.
        copies: storages that it is a copy of, or that are copies of it, where torch might have made
            a view for another layout; each with the version it had then.
        ones: the storages of which it is one, where the run decides which.
        roots: the caller's storages that its tensors' layout may follow; None among them where
            that is another on one path through the program than on another.
        frozen: whether it is open whose memory it is, so that none can write to it.
        part: how it belongs to another storage, if it does.
        is_callers: whether it is that of a tensor from outside the program.
        first: the contents and the version it had when it was made, when it was not frozen.
    """

    def __init__(self, expr: Expr, meta: torch.Tensor) -> None:
        self.expr = expr
        self.meta = meta
        self.version = object()
        self.viewed_flat = False
        self.writers: set[object] = set()
        self.copies: list[tuple[Storage, object]] = []
        self.ones: frozenset[Storage] = frozenset()
        self.roots: Roots = frozenset()
        self.frozen = False
        self.part: Part | None = None
        self.is_callers = False
        self.first = (expr, self.version, False)

    @property
    def is_alone(self) -> bool:
        """Whether it is what it was made as, and shares nothing with other storages."""
        return self.version is self.first[1] and self.part is None and not self.copies

    @property
    def identities(self) -> set[Storage]:
        """All that it may be: itself, and what it is one of, and so on."""
        found: set[Storage] = set()
        waiting = [self]
        while waiting:
            storage = waiting.pop()
            if storage not in found:
                found.add(storage)
                waiting += storage.ones
        return found

    def note_copy(self, other: Storage, seen: object) -> None:
        """Take note that another one, at some version, may be the same memory for other layouts."""
        self.copies.append((other, seen))
        other.copies.append((self, self.version))


Roots = frozenset[Storage | None]


class Part:
    """A storage that is a part of another one, at a place that is known only at run time.

    Args:
        whole: the other one.
        read: takes the part out of it again.
        write: puts a tensor in the place of the part; ``None`` where that is not known.
    """

    def __init__(
        self,
        whole: Storage,
        read: Callable[[], Expr],
        write: Callable[[Stored], None] | None,
    ) -> None:
        self.whole = whole
        self.read = read
        self.write = write
        self.seen = whole.version
        """The version of the whole that the part is of."""


class Stored(Protocol):
    """A tensor of the program, as far as its memory is concerned.

    Attributes:
        side: the same for tensors that share memory however the caller's tensors lie; others that
            do so may be views or copies of these.
        is_detached: whether it was made without the gradients of its memory's other tensors.
    """

    made: Expr
    meta: torch.Tensor
    storage: Storage | None
    version: object
    side: object
    is_detached: bool


def is_view(tensor: Stored, other: Stored) -> bool:
    """Whether what is written to one tensor is written to another as well."""
    one, two = tensor.storage, other.storage
    if one is None or two is None:
        return False
    return one is two or (one.part is not None and one.part.whole is two)


def lies_as(meta: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are known to have the same strides."""
    return all(is_known(n == m) for n, m in zip(meta.stride(), other.stride()))


def may_be(tensor: Stored, other: Stored, places: Mapping[Storage, Storage]) -> bool:
    """Whether what is one of some tensors may be another one, for what depends on layouts.

    Args:
        tensor: what :meth:`Memory.one_of` gave.
        other: the other one.
        places: the storages that the other one's may be a copy of, and what each of them is where
            it stands for that one.
    """
    one, two = tensor.storage, other.storage
    if one is None or two is None:
        return True
    lies_so = None in one.roots or lies_as(tensor.meta, other.meta)
    copies = {places.get(copy) for copy, _ in two.copies} - {None}
    known = {copy for copy, _ in one.copies}
    return lies_so and (one is two or (roots_of(other) <= one.roots and copies <= known))


def storage_of(item: Any) -> Storage | None:
    """The memory of a tensor; None for what is none, or lies in none that can be written to."""
    found: Storage | None = getattr(item, "storage", None)
    return found


def memory_of(tensors: Iterable[Any]) -> set[Storage]:
    """All memory that tensors may lie in."""
    found: set[Storage] = set()
    waiting = [storage for x in tensors if (storage := storage_of(x)) is not None]
    while waiting:
        storage = waiting.pop()
        if storage not in found:
            found.add(storage)
            waiting += storage.ones
            waiting += [] if storage.part is None else [storage.part.whole]
    return found


def roots_of(tensor: Stored) -> Roots:
    """The storages that a tensor's layout may follow, as in :class:`Storage`."""
    storage = tensor.storage
    if storage is None:
        return frozenset()
    return frozenset((storage,)) if storage.is_callers else storage.roots
