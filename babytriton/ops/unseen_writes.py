"""Writes that the compiler does not see: of the user's own operators, which torch runs.

Such an operator is given memory to write to, and what it leaves there are results like others. The
memory is a copy, or the caller's own where nothing needs what it held before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import CustomOpDef

from babytriton.ops.layout import Layout
from babytriton.ops.meta import apply
from babytriton.ops.refusals import Mutation
from babytriton.ops.storage import Storage, is_view
from babytriton.ops.table import Callee, called
from babytriton.ops.trees import map_leaves
from babytriton.ops.value import Scalar, Value, map_values, values_in
from babytriton.ops.views import View

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

_OPERATORS = (CustomOpDef, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
"""Kinds of operators of libraries: what these give shares no memory with what they are given."""

Seen = tuple[Any, ...]
"""How a tensor is found: the number of another one that it lies in; and its sizes, strides and
offset in elements, if it is not all of that."""


@dataclass(frozen=True)
class Place:
    """What stands among arguments for a tensor, by its number."""

    number: int


@dataclass(frozen=True)
class Writer:
    """A callable that writes to tensors, which are given it in memory that it may write to.

    It gives that memory, as it is afterwards, and the result.

    Attributes:
        fn: the callable, which only torch itself can run.
        count: how many of the tensors, the first ones, are memory that it writes to.
        in_place: the numbers of those of them that are written to themselves, and not copies.
    """

    fn: Callee
    count: int
    in_place: frozenset[int] = frozenset()

    @property
    def __name__(self) -> str:
        return called(self.fn)

    def __call__(
        self,
        *tensors: torch.Tensor,
        seen: Sequence[Seen],
        args: tuple[Any, ...],
        named: Sequence[tuple[str, Any]],
    ) -> tuple[list[torch.Tensor], Any]:
        """Call it.

        Args:
            tensors: the memory that it writes to, and all others that it is given.
            seen: how its tensors are found in these.
            args: its arguments, with places for its tensors.
            named: those with names.
        """
        own = [self._own(n, x) for n, x in enumerate(tensors[: self.count])]
        whole = [*own, *tensors[self.count :]]

        def found(place: Place) -> torch.Tensor:
            number, *view = seen[place.number]
            return View(*view).of(whole[number]) if view else whole[number]

        args, kwargs = map_leaves((args, dict(named)), Place, found)
        result = apply(self.fn, args, kwargs)
        for n in self.in_place:
            if own[n] is not tensors[n]:
                tensors[n].copy_(own[n])
        return own, result

    def _own(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """What is in a memory, without gaps, to be written to."""
        if number in self.in_place:
            return tensor.contiguous()
        return tensor.clone(memory_format=torch.contiguous_format)

    def where_they_lie(self, numbers: frozenset[int]) -> Writer:
        """The same that writes to some memory, by its numbers, itself."""
        return replace(self, in_place=self.in_place | numbers)


@dataclass(frozen=True)
class _Memory:
    """What a callable writes to.

    Attributes:
        contents: what is there.
        storage: the memory, if it is all of one.
        targets: the tensors that are written to.
        inside: all tensors among the arguments that lie in it.
    """

    contents: Value
    storage: Storage | None
    targets: Sequence[Value]
    inside: Sequence[Value]

    def seen(self, number: int, value: Value) -> Seen:
        """How a tensor is found in it, by its number among what the callable is given."""
        meta = value.meta
        if self.storage is None or Layout.of(meta) == Layout.of(self.storage.meta):
            return (number,)
        return number, tuple(meta.shape), tuple(meta.stride()), meta.storage_offset()

    def write(self, builder: Builder, new: Value) -> None:
        """Put there what the callable has left in it."""
        if self.storage is None:
            builder.memory.write(self.targets[0], new.expr)
        else:
            builder.memory.write_all(self.storage, self.targets, new.expr)


def versions(values: Sequence[Value]) -> list[int | None]:
    """How often each tensor was written to, which torch counts where it is typed."""
    return [None if x.meta.is_inference() else x.meta._version for x in values]


def make(
    builder: Builder,
    fn: Callee,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    written: Sequence[int],
) -> Any:
    """Make the writes of a callable that has no row, and return what the call returns.

    Args:
        builder: emits them.
        fn: the callable.
        args, kwargs: of the call.
        written: the numbers of the tensors among these that it writes to.

    Raises:
        Mutation: two of its arguments share a memory that it writes to, and it is not told how.
    """
    values = values_in((args, kwargs))
    memories: list[_Memory] = []
    for target in (values[n] for n in written):
        if not any(target is x for memory in memories for x in memory.targets):
            memories.append(_memory_of(builder, fn, target, values, [values[n] for n in written]))
    tensors = [memory.contents for memory in memories]
    seen: list[Seen] = []

    def place(value: Value) -> Any:
        if isinstance(value, Scalar):
            return value
        for number, memory in enumerate(memories):
            if any(value is x for x in memory.inside):
                seen.append(memory.seen(number, value))
                break
        else:
            seen.append((len(tensors),))
            tensors.append(value)
        return Place(len(seen) - 1)

    args, kwargs = map_values((args, dict(kwargs)), place)
    rest = {"seen": tuple(seen), "args": args, "named": tuple(kwargs.items())}
    left, result = builder.call(Writer(fn, len(memories)), tuple(tensors), rest)
    for memory, new in zip(memories, left):
        memory.write(builder, new)

    def itself(value: Value) -> Value:
        same = [x.targets[0] for x, new in zip(memories, left) if new.meta is value.meta]
        return same[0] if same else value

    return map_values(result, itself)


def _memory_of(
    builder: Builder, fn: Callee, target: Value, values: Sequence[Value], targets: Sequence[Value]
) -> _Memory:
    """The memory of a tensor that a callable writes to.

    All of the caller's, which may be written to where it lies; and of what several arguments share.
    Else the tensor alone: to copy a part takes less time.
    """
    storage = target.storage
    inside = [value for value in values if value is target or is_view(value, target)]
    is_known = isinstance(fn, _OPERATORS) and not builder.tape.depends(values)
    is_shared = storage is not None and (storage.is_callers or len(inside) > 1)
    if storage is not None and is_shared and is_known and _are_views(storage, inside):
        contents = builder.value(storage.expr, storage.meta)
        through = [x for x in targets if any(x is other for other in inside)]
        return _Memory(contents, storage, through, inside)
    if len(inside) > 1:
        why = f"`{called(fn)}` writes to the memory of two of its arguments"
        raise Mutation(why, "give it a clone() as one of the two")
    return _Memory(target, None, [target], inside)


def _are_views(storage: Storage, values: Sequence[Value]) -> bool:
    """Whether tensors are known to lie in a memory, and where."""
    base = storage.meta
    is_plain = storage.part is None and not storage.frozen and not storage.copies
    is_all = base.untyped_storage().nbytes() == base.numel() * base.element_size()
    return (
        is_plain
        and is_all
        and base.is_contiguous()
        and all(x.storage is storage and x.meta.dtype == base.dtype for x in values)
    )
