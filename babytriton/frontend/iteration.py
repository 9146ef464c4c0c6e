"""What a loop runs over: how many items there are, and each of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from babytriton.frontend.grown import Grown, Head
from babytriton.ops import scalars
from babytriton.ops.value import Scalar, Value

Apply = Callable[..., Any]
"""Applies one of Python's operators to values of the program."""


class Items:
    """Items that can be counted and reached by number, also by one of the run time.

    Iterating over them, as Python's own functions do, needs a known count.
    """

    def count(self) -> Any:
        """How many there are: an int, a symbolic size, or a number of the run time."""
        raise NotImplementedError

    def item(self, apply: Apply, index: Any) -> Any:
        """The item of a number."""
        raise NotImplementedError

    def is_same(self) -> bool:
        """Whether they are what they were when they were asked for: lists may change since."""
        return True

    def __iter__(self) -> Iterator[Any]:
        return (self.item(_plain, i) for i in range(operator.index(self.count())))

    def __len__(self) -> int:
        return operator.index(self.count())


@dataclass(frozen=True)
class Counted(Items):
    """``range`` with bounds of which some may be numbers of the run time."""

    start: Any
    stop: Any
    step: Any

    def count(self) -> Any:
        bounds = (self.start, self.stop, self.step)
        if all(isinstance(bound, int) for bound in bounds):
            return len(range(*bounds))
        toward = 1 if self.step > 0 else -1
        # Below zero for an empty range, as far as a loop's comparison with it goes.
        return (self.stop - self.start + self.step - toward) // self.step

    def item(self, apply: Apply, index: Any) -> Any:
        offset = index if self.step == 1 else apply(operator.mul, index, self.step)
        return offset if _is_zero(self.start) else apply(operator.add, self.start, offset)


@dataclass(frozen=True)
class Rows(Items):
    """A tensor, by one of its dimensions."""

    tensor: Value
    dim: int = 0

    def count(self) -> Any:
        return self.tensor.meta.shape[self.dim]

    def item(self, apply: Apply, index: Any) -> Any:
        place = (*[slice(None)] * self.dim, index) if self.dim else index
        return apply(operator.getitem, self.tensor, place)


@dataclass(frozen=True)
class Enumerated(Items):
    """``enumerate``."""

    items: Items
    start: Any

    def count(self) -> Any:
        return self.items.count()

    def is_same(self) -> bool:
        return self.items.is_same()

    def item(self, apply: Apply, index: Any) -> Any:
        number = index if _is_zero(self.start) else apply(operator.add, self.start, index)
        return number, self.items.item(apply, index)


@dataclass(frozen=True)
class Zipped(Items):
    """``zip``, of counts that are known."""

    parts: tuple[Items, ...]

    def count(self) -> Any:
        return min(part.count() for part in self.parts)

    def is_same(self) -> bool:
        return all(part.is_same() for part in self.parts)

    def item(self, apply: Apply, index: Any) -> Any:
        return tuple(part.item(apply, index) for part in self.parts)


@dataclass(frozen=True)
class Reversed(Items):
    """``reversed``."""

    items: Items

    def count(self) -> Any:
        return self.items.count()

    def is_same(self) -> bool:
        return self.items.is_same()

    def item(self, apply: Apply, index: Any) -> Any:
        last = apply(operator.sub, self.items.count(), 1)
        return self.items.item(apply, apply(operator.sub, last, index))


@dataclass(frozen=True)
class Listed(Items):
    """Items of any kind, which only a constant can number."""

    items: Sequence[Any]

    def count(self) -> Any:
        return len(self.items)

    def item(self, apply: Apply, index: Any) -> Any:
        return self.items[index]


@dataclass(frozen=True)
class Filled(Items):
    """A list that a loop has made longer: all its items are in rows.

    Attributes:
        source: the list.
        head: what its items stand in.
        known: the items it had, where it is known how many there are.
    """

    source: list[Any]
    head: Head
    known: Sequence[Any] | None = None

    def count(self) -> Any:
        return self.head.count if self.known is None else len(self.source)

    def item(self, apply: Apply, index: Any) -> Any:
        if self.known is not None and isinstance(index, int):
            return self.source[index]
        return self.head.rebuild([apply(operator.getitem, x, index) for x in self.head.rows])

    def is_same(self) -> bool:
        if self.known is None:
            grown: Any = self.source
            return grown.head is self.head and not grown.later
        is_as_long = len(self.known) == len(self.source)
        return is_as_long and all(map(operator.is_, self.known, self.source))


def unbinds(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Value, int] | None:
    """The tensor and the dimension that a call unbinds, if it is one of ``torch.unbind``."""
    if fn not in (torch.unbind, torch.Tensor.unbind):
        return None
    tensor = args[0] if args else kwargs["input"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return tensor, dim % tensor.ndim


class Numbered:
    """Tuples and lists whose items each have a number in tensors."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Items]] = {}

    def note_call(
        self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any
    ) -> None:
        """Take note of what a call of torch gave, if it is what ``torch.unbind`` does."""
        given = unbinds(fn, args, kwargs)
        if given is not None and isinstance(found, tuple):
            self._note(found, Rows(*given))

    def note_list(self, items: list[Any], head: Head) -> None:
        """Take note of a list that a loop has filled."""
        self._note(items, Filled(items, head, list(items)))

    def _note(self, found: Any, items: Items) -> None:
        # With the sequence itself: as long as it is there, no other one has its identity.
        self._known[id(found)] = found, items

    def items(self, iterable: Any) -> Any:
        """The same by number, if it is such a sequence and holds what it did."""
        _, items = self._known.get(id(iterable), (None, None))
        return iterable if items is None or not items.is_same() else items


class Generated(list[Any]):
    """What a generator expression gives: all its items, taken one after the other."""

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)


def items_of(iterable: Any) -> Items:
    """What a loop over ``iterable`` runs over.

    Raises:
        TypeError: it cannot be iterated over.
    """
    if isinstance(iterable, Items):
        return iterable
    if isinstance(iterable, Grown) and iterable.head is not None and not iterable.later:
        return Filled(iterable, iterable.head)
    if isinstance(iterable, range):
        return Counted(iterable.start, iterable.stop, iterable.step)
    if isinstance(iterable, Scalar):
        raise TypeError(f"'{iterable.kind.__name__}' object is not iterable")
    if isinstance(iterable, Value):
        if iterable.meta.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return Rows(iterable)
    return Listed(iterable if isinstance(iterable, (list, tuple)) else list(iterable))


def is_numbered(items: Items) -> bool:
    """Whether a number of the run time can say which item is meant."""
    if isinstance(items, Zipped):
        return all(is_numbered(part) for part in items.parts)
    if isinstance(items, (Enumerated, Reversed)):
        return is_numbered(items.items)
    return not isinstance(items, Listed)


def _is_zero(number: Any) -> bool:
    return type(number) is int and number == 0


def _plain(fn: Callable[..., Any], *operands: Any) -> Any:
    return fn(*operands)


# ---------------------------------------------------------------- Python's own functions


def counted(*bounds: Any) -> Any:
    """``range``, where bounds may be numbers of the run time."""
    if not any(isinstance(bound, (Value, torch.SymInt)) for bound in bounds):
        return range(*bounds)
    bounds = tuple(_as_int(bound) for bound in bounds)
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if not isinstance(step, int) or step == 0:
        raise TypeError("the step of a range must be a constant other than 0")
    return Counted(start, stop, step)


def _as_int(bound: Any) -> Any:
    if isinstance(bound, Scalar) or not isinstance(bound, Value):
        return bound
    if bound.meta.numel() != 1 or bound.meta.dtype.is_floating_point:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    builder: Any = bound.emitter
    return scalars.convert(builder, bound, int)


def enumerated(iterable: Any, start: Any = 0) -> Items:
    """``enumerate``."""
    return Enumerated(items_of(iterable), start)


def zipped(*iterables: Any, strict: bool = False) -> Items:
    """``zip``."""
    parts = tuple(items_of(iterable) for iterable in iterables)
    counts = [part.count() for part in parts]
    if strict and any(count != counts[0] for count in counts):
        raise ValueError("zip() arguments are of different lengths")
    return Zipped(parts) if parts else Listed(())


def flipped(iterable: Any) -> Items:
    """``reversed``."""
    return Reversed(items_of(iterable))
