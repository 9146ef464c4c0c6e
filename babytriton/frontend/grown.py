"""Lists that grow in loops, and their items: rows of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from babytriton.ops.refusals import Unavailable
from babytriton.ops.value import InTensors, Scalar, Value


class Row(Value):
    """A row of a tensor, read where it is used: a loop makes many, and few are used alone.

    Attributes:
        rows: the tensor.
        index: of the row in it.
    """

    def __init__(self, rows: Value, index: int) -> None:
        super().__init__(rows.emitter, None, rows.meta[index], rows.storage)
        self.rows = rows
        self.index = index
        self.version = None  # It was read at none.

    @property
    def made(self) -> Any:
        return self.emitter.read(self) if self._made is None else self._made

    @made.setter
    def made(self, expr: Any) -> None:
        self._made = expr


@dataclass(eq=False)
class Head:
    """The items of a list that stand in rows of tensors.

    Attributes:
        rebuild: makes an item of its tensors.
        rows: for each tensor of an item, those of all items, one after the other.
        count: how many items there are: an int, a size, or a number of the run time.
        before: the first items, which there are at least; they stand in rows as well.
        kind: what they are together for Python: a list, or a tuple.
        reads_too_early: whether an item was asked for that is there in later steps alone.
    """

    rebuild: Callable[[Sequence[Value]], Any]
    rows: Sequence[Value]
    count: Any
    before: Sequence[Any] = ()
    kind: type = list
    reads_too_early: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether it is what a step of a loop sees, in which the count is another each time."""
        return isinstance(self.count, Scalar)

    @property
    def tensor(self) -> Value | None:
        """The rows of all items, if each is one tensor."""
        [first, *more] = self.rows
        return None if more or self.rebuild([first]) is not first else first

    def item(self, index: Any) -> Any:
        """The item of a number."""
        if type(index) is int and 0 <= index < len(self.before):
            return self.before[index]
        return self.rebuild([rows[index] for rows in self.rows])

    def items(self) -> list[Any]:
        """All items, of the count that there are in this call."""
        if self.is_inside:
            self.refuse("append in the loop, and do the rest after it")
        return [self.item(i) for i in range(operator.index(self.count))]

    def require(self, count: int) -> None:
        """Refuse what needs more items than a step surely finds."""
        if count > len(self.before):
            self.reads_too_early = True
            why = "in the first steps of the loop, there are not as many items"
            raise Unavailable(why, "put items into the list before the loop")

    def refuse(self, instead: str) -> None:
        """Refuse what needs the number of items."""
        raise Unavailable("how many items the list has, the step of the loop decides", instead)

    def part(self, index: slice) -> Head | None:
        """The items of a slice as rows; None where only the items themselves have it."""
        if index == slice(None, None, -1):
            rows: list[Value] = [x.flip(0) for x in self.rows]
            for tensor in (*rows, *self.rows):
                # The items are in two places from here on.
                if tensor.storage is not None:
                    tensor.storage.frozen = True
        elif index.step in (None, 1):
            rows = [x[index] for x in self.rows]
        else:
            return None
        return Head(self.rebuild, rows, rows[0].meta.shape[0])


class Grown(InTensors):
    """A list that a program makes: what loops have put in rows of tensors, then the other items.

    For Python it is a list of these others alone, and all of it where it has no head.

    Attributes:
        head: what is in rows; None if nothing is.
    """

    def __init__(self, items: Iterable[Any] = (), head: Head | None = None) -> None:
        super().__init__(items)
        self.head = head

    @property
    def kind(self) -> type:
        """What it is for Python."""
        return list if self.head is None else self.head.kind

    @property
    def tensors(self) -> Sequence[Value]:
        return () if self.head is None else self.head.rows

    @property
    def later(self) -> list[Any]:
        """The items that are in no rows."""
        return list(list.__iter__(self))

    @property
    def length(self) -> Any:
        """How many items there are."""
        later = list.__len__(self)
        if self.head is None:
            return later
        filled: Any = self.head.count
        return filled + later if later else filled

    def become(self, other: Iterable[Any]) -> None:
        """Hold what another list does."""
        self.head = other.head if isinstance(other, Grown) else None
        list.__setitem__(self, slice(None), list.__iter__(other))  # type: ignore[arg-type]

    def copy(self) -> Grown:
        return Grown(list.__iter__(self), self.head)

    __copy__ = copy

    def __len__(self) -> int:
        return operator.index(self.length)

    def __bool__(self) -> bool:
        if self.head is None or list.__len__(self):
            return list.__len__(self) > 0
        if self.head.is_inside:
            self.head.require(1)
            return True
        return bool(self.head.count > 0)

    def __iter__(self) -> Iterator[Any]:
        if self.head is None:
            return list.__iter__(self)
        return iter([*self.head.items(), *self.later])

    def __getitem__(self, index: Any) -> Any:
        head, later = self.head, list.__len__(self)
        if head is None or (type(index) is int and -later <= index < 0):
            return list.__getitem__(self, index)
        if isinstance(index, slice):
            return self._slice(head, index)
        if head.is_inside:
            if type(index) is not int:
                head.refuse("take one from the end, as items[-1], or fill the rows of a tensor")
            head.require(-index - later if index < 0 else index + 1)
            return head.item(self.length + index if index < 0 else index)
        if later and not (type(index) is int and index < 0):
            return list(self)[index]
        return head.item(index + later if later else index)

    def _slice(self, head: Head, index: slice) -> Any:
        if head.is_inside:
            start, stop = index.start, index.stop
            bounds = (start, -1 if stop is None else stop)
            if index.step not in (None, 1) or any(type(x) is not int or x >= 0 for x in bounds):
                head.refuse("take some from the end, as items[-2:]")
            return [self[i] for i in range(start, stop or 0)]
        part = None if list.__len__(self) else head.part(index)
        return list(self)[index] if part is None else Grown((), part)

    def __add__(self, other: Any) -> Any:
        return Grown([*self, *other]) if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Grown([*other, *self]) if isinstance(other, list) else NotImplemented

    def __eq__(self, other: Any) -> bool:
        return list(self) == (list(other) if isinstance(other, Grown) else other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __repr__(self) -> str:
        return repr(self.later) if self.head is None else "a list that a loop makes longer"


def _on_all_items(name: str) -> Callable[..., Any]:
    """A method of lists, of a list that has all items by themselves."""
    method = getattr(list, name)

    def apply(self: Grown, *args: Any, **kwargs: Any) -> Any:
        if self.head is not None:
            self.become(list(self))
        return method(self, *args, **kwargs)

    apply.__name__ = apply.__qualname__ = name
    return apply


for _name in (
    *("insert", "pop", "remove", "reverse", "sort", "clear", "index", "count"),
    *("__contains__", "__delitem__", "__imul__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__mul__", "__rmul__", "__reversed__", "__setitem__"),
):
    setattr(Grown, _name, _on_all_items(_name))

Grown.__name__ = "list"
"""What messages call it, of Python's as well."""
