"""Reads and writes of memory that several tensors of the program share.

Writing makes new contents of it, and a tensor that views it is read from them when it is used next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from tvm.ir import Expr

from babytriton.diagnostics import Span
from babytriton.ops.layout import Layout
from babytriton.ops.refusals import Mutation, Unavailable
from babytriton.ops.reverse.tape import Tape
from babytriton.ops.sizes import is_empty
from babytriton.ops.storage import Storage, Stored, lies_as, roots_of, storage_of
from babytriton.ops.table import PRODUCTS, Op, stops
from babytriton.ops.views import Views


class Emits(Protocol):
    """What a memory emits with; the builder is the one implementation.

    Attributes:
        views: which tensors lie in the memory of others.
        tape: what gradients flow through.
        span: the user's expression being compiled.
    """

    views: Views
    tape: Tape
    span: Span | None

    def view(self, contents: Expr, base: torch.Tensor, meta: torch.Tensor) -> Expr:
        """Emit what a tensor sees of a memory that was made for the tensor ``base``."""

    def overwrite(
        self, contents: Expr, base: torch.Tensor, new: Expr, meta: torch.Tensor
    ) -> tuple[Expr, Expr]:
        """Emit such a memory after what a tensor sees of it got new elements, and what it sees."""

    def after_write(self, seen: Expr, before: Expr, after: Expr, meta: torch.Tensor) -> Expr:
        """A memory that was written to through a tensor, which saw it as ``seen``."""

    def unfollowed(self, expr: Expr) -> Expr:
        """The same numbers, which gradients do not flow through."""

    def value(self, expr: Expr, meta: torch.Tensor) -> Any:
        """A tensor of the program."""


class Memory:
    """The storages of a program."""

    def __init__(self, builder: Emits) -> None:
        self._builder = builder
        self.storages: dict[int, Storage] = {}
        """By the identity of torch's own."""
        self.followed: set[Storage] = set()
        """The caller's storages on whose layouts it depends what the program does: which of its
        tensors share memory, where it writes to them, or what strides they have."""
        self.undecided: list[Span | None] = []
        """Where it first depends on a layout that the run decides on, if it does."""
        self.chooses_formats = False
        """Whether the program says itself how tensors are to lie."""

    def place(self, expr: Expr, meta: torch.Tensor) -> Storage:
        """The storage that torch puts a tensor into; a new one, if it has one of its own."""
        key = int(meta.untyped_storage()._cdata)
        storage = self.storages.get(key)
        if storage is None:
            storage = self.storages[key] = Storage(expr, meta)
        elif storage.is_alone and not storage.is_callers and expr is not storage.expr:
            self._builder.views.note_part(expr, meta, storage.expr, storage.meta)
        return storage

    def one_of(self, tensors: Sequence[Stored], expr: Expr | None = None) -> Any:
        """A tensor that is one of some others, of one type: the run decides which.

        For what depends on layouts, it lies as these do.

        Args:
            tensors: the others.
            expr: that it is; None if that is still to be given.
        """
        meta, is_decided = _common([tensor.meta for tensor in tensors])
        found = self._builder.value(expr, meta)
        storage = found.storage
        storage.ones = frozenset(x.storage for x in tensors if x.storage is not None)
        storage.roots = storage.roots.union(*map(roots_of, tensors), () if is_decided else (None,))
        for other, seen in [copy for x in tensors if x.storage for copy in x.storage.copies]:
            storage.note_copy(other, seen)
        return found

    def relate(self, stands_for: Iterable[tuple[Any, Any]]) -> None:
        """Let tensors be copies of each other where those are that they stand for.

        Args:
            stands_for: tensors, each with one that it stands for; what is none is passed over.
        """
        pairs = [(storage_of(found), storage_of(x)) for found, x in stands_for]
        places = {storage: found for found, storage in pairs if found and storage}
        for found, storage in pairs:
            for other, _ in storage.copies if found and storage else ():
                if found and other in places:
                    found.note_copy(places[other], places[other].version)

    def forget(self, known: Collection[Storage]) -> None:
        """Go back to the storages that are known, and to the caller's as they were given."""
        for key, storage in list(self.storages.items()):
            if storage in known:
                continue
            if storage.is_callers:
                storage.expr, storage.version, storage.frozen = storage.first
            else:
                del self.storages[key]

    def note_call(
        self,
        fn: Callable[..., Any],
        given: Sequence[Stored],
        kwargs: Mapping[str, Any],
        tensor: Stored,
        op: Op | None,
    ) -> None:
        """Take note of a call that gave a tensor, for what it says of layouts and of gradients.

        Args:
            fn: what was called.
            given: the tensors that it was called with.
            kwargs: what it was called with by name.
            tensor: its result.
            op: its row, if it has one.
        """
        storage = tensor.storage
        if storage is None or not given:
            return
        source = given[0].storage
        if source is storage:
            tensor.side = object() if fn in _MAY_COPY else given[0].side
            storage.viewed_flat |= fn in _MAY_COPY
            tensor.is_detached = given[0].is_detached or (op is not None and op.gradient is stops)
            if storage.is_callers and fn not in _ABSOLUTE:
                self._note_part(given[0], tensor)
            return
        # Whatever it is made of: by torch's own choice, or by the caller's.
        is_laid = (op is not None and op.name in PRODUCTS) or _says_format(kwargs)
        if not is_laid and tensor.meta.ndim > 1:
            storage.roots = storage.roots.union(*(roots_of(other) for other in given))
        if fn in _MAY_COPY and source is not None and roots_of(given[0]):
            storage.note_copy(source, source.version)
            storage.roots |= roots_of(given[0])

    def _note_part(self, seen: Stored, tensor: Stored) -> None:
        """Take note that a tensor is a part of one in the caller's memory, where that is known."""
        storage, views = tensor.storage, self._builder.views
        if storage is None or not storage.is_alone or tensor.made is storage.expr:
            return
        if seen.made is storage.expr or views.is_part(seen.made, storage.expr):
            views.note_part(tensor.made, tensor.meta, storage.expr, storage.meta)

    def returned(self, fn: Callable[..., Any], tensor: Stored) -> Any:
        """What a call gave that gave the tensor it was called with.

        Where torch would copy one of another layout, it is a second tensor in the same memory: so
        writing to one, and then reading the other, shows.
        """
        storage = tensor.storage
        if storage is None or fn not in _MAY_COPY:
            return tensor
        storage.viewed_flat = True
        if storage.is_callers:
            return tensor
        found = self._builder.value(self.read(tensor), tensor.meta)
        found.side = object()
        return found

    def note_format(self, fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        """Take note of a call that says how its result is to lie."""
        self.chooses_formats |= fn is torch.Tensor.contiguous or "memory_format" in kwargs

    def note_layout(self, fn: Callable[..., Any], tensor: Stored) -> None:
        """Take note of a call that gave what depends on how a tensor lies in memory.

        Raises:
            Unavailable: it depends on where that is, or on which path the run takes.
        """
        if fn in _OF_LAYOUT:
            if None in roots_of(tensor):
                why = "how the tensor lies in memory depends on which path the run takes"
                raise Unavailable(why, "ask on each of the paths, before they meet")
            self.follow(tensor)
        if fn is torch.Tensor.data_ptr:
            why = "where a tensor lies in memory is another place at each call"
            raise Unavailable(why, "pass what depends on it as an argument")

    def follow(self, tensor: Stored) -> None:
        """The program depends on how a tensor lies, and so on what that follows."""
        roots = roots_of(tensor)
        self.followed.update(root for root in roots if root is not None)
        if None in roots and not self.undecided:
            self.undecided.append(self._builder.span)

    def read(self, tensor: Stored) -> Expr:
        """A tensor as it is after its memory was written to.

        Raises:
            Mutation: it sees the memory otherwise than as elements of the tensor it was made for.
        """
        storage = tensor.storage
        assert storage is not None
        self._refresh(storage)
        if any(other.version is not seen for other, seen in storage.copies):
            self.follow(tensor)
        if tensor.version is storage.version:
            return tensor.made
        if not storage.is_callers and storage.writers - {tensor.side}:
            self.follow(tensor)
        found = storage.expr
        if not _is_whole(tensor, storage):
            _require_part(tensor, storage)
            found = self._builder.view(storage.expr, storage.meta, tensor.meta)
        return self._builder.unfollowed(found) if tensor.is_detached else found

    def write(self, tensor: Stored, new: Expr) -> None:
        """Put other numbers of the same shape and dtype into a tensor.

        Raises:
            Mutation: several of its elements lie in one place, or it sees the memory otherwise
                than as elements of the tensor it was made for.
        """
        storage = tensor.storage
        if storage is not None:
            self._prepare_write(tensor, storage, new)
        if storage is None or _is_whole(tensor, storage):
            whole = new
        else:
            _require_part(tensor, storage)
            if not (is_empty(tensor.meta) or Layout.of(tensor.meta).is_injective):
                raise Mutation("several of its elements lie in one place of memory", _CLONE)
            whole, new = self._builder.overwrite(storage.expr, storage.meta, new, tensor.meta)
        if storage is not None:
            seen = self.read(tensor)
            whole = self._builder.after_write(seen, storage.expr, whole, storage.meta)
            if _is_whole(tensor, storage):
                new = whole
            else:
                new = self._builder.after_write(seen, seen, new, tensor.meta)
        tensor.made = self._builder.unfollowed(new) if tensor.is_detached else new
        if storage is not None:
            storage.expr = whole
            storage.version = tensor.version = object()
            if storage.part is not None and storage.part.write is not None:
                storage.part.write(self._builder.value(whole, storage.meta))
                storage.part.seen = storage.part.whole.version

    def write_all(self, storage: Storage, tensors: Iterable[Stored], contents: Expr) -> None:
        """Put other contents into a memory, which gradients do not flow through.

        Args:
            storage: the memory.
            tensors: that it is written to through.
            contents: as the tensor that it was made for.

        Raises:
            Mutation: one of the tensors cannot be written to.
        """
        for tensor in tensors:
            self._prepare_write(tensor, storage, contents)
        storage.expr, storage.version = contents, object()

    def _prepare_write(self, tensor: Stored, storage: Storage, new: Expr) -> None:
        """Refuse a write to a tensor that has to be another one, and take note of it."""
        self._refresh(storage)
        storage.writers.add(tensor.side)
        if any(other.is_callers for other, _ in storage.copies):
            self.follow(tensor)
        if storage.frozen:
            raise Mutation(_SHARED, _OWN)
        if storage.part is not None and storage.part.write is None:
            raise Mutation("where it lies in another tensor is known only at run time", _CLONE)
        if tensor.is_detached and self._builder.tape.records(new):
            why = "it is detached from a tensor whose gradients what is written would change"
            raise Mutation(why, "use .detach().clone() for a tensor of its own")

    def _refresh(self, storage: Storage) -> None:
        """Take a part out of its whole again, if that was written to."""
        part = storage.part
        if part is None:
            return
        self._refresh(part.whole)
        if part.seen is not part.whole.version:
            storage.expr, storage.version = part.read(), object()
            part.seen = part.whole.version


_MAY_COPY = frozenset(
    {torch.reshape, torch.flatten, torch.ravel, torch.unflatten, torch.Tensor.reshape}
    | {torch.Tensor.flatten, torch.Tensor.ravel, torch.Tensor.unflatten, torch.Tensor.reshape_as}
    | {torch.Tensor.contiguous}
)
"""What gives a view of a contiguous tensor, and may give a copy of another."""

_ABSOLUTE = frozenset({torch.as_strided, torch.Tensor.as_strided})
"""What counts from the start of a memory, which the caller's tensors may begin behind."""

_OF_LAYOUT = frozenset(
    {torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor.is_contiguous}
)
"""What gives how a tensor lies."""

_CLONE = "use .clone() for a tensor of its own"

_SHARED = "it may share its memory with another tensor, or a list that a loop has filled holds it"
_OWN = "use .clone() for a tensor of its own, or append a clone() to the list"


def _says_format(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is told how its result is to lie, other than as what it is made of does."""
    return kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format


def _common(metas: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """A tensor that lies as some others do, and whether it does: contiguous if these differ."""
    contiguous = torch.empty_like(metas[0], memory_format=torch.contiguous_format)
    if all(lies_as(meta, contiguous) for meta in metas):
        return contiguous, True
    found = torch.empty_like(metas[0])
    is_decided = all(lies_as(meta, found) for meta in metas)
    return found if is_decided else contiguous, is_decided


def _is_whole(tensor: Stored, storage: Storage) -> bool:
    same = Layout.of(tensor.meta) == Layout.of(storage.meta)
    return same and tensor.meta.dtype == storage.meta.dtype


def _require_part(tensor: Stored, storage: Storage) -> None:
    """Refuse a tensor whose elements are not those of the tensor the memory was made for."""
    whole = storage.meta.numel() * storage.meta.element_size()
    covered = storage.meta.untyped_storage().nbytes() == whole
    one_type = tensor.meta.dtype == storage.meta.dtype
    if not (covered and one_type and Layout.of(storage.meta).is_injective):
        raise Mutation("it sees its memory as another dtype, or with gaps", _CLONE)
