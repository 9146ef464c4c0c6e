"""Lists that grow in loops, and their items: rows of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from babytriton.ops.refusals import Unavailable
from babytriton.ops.value import Scalar, Value


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
class Grown:
    """A list that a loop makes longer, while it does and where it is not known how often.

    Attributes:
        rebuild: makes an item of its tensors.
        rows: for each tensor of an item, those of all items, one after the other.
        filled: how many items the rows have: an int, a size, or a number of the run time.
        surely: how many they have at least.
        later: the items that follow, which are in no rows.
        kind: what it is for Python, a list or a tuple.
        reads_too_early: whether an item was asked for that is there in later steps alone.
    """

    rebuild: Callable[[Sequence[Value]], Any]
    rows: Sequence[Value]
    filled: Any
    surely: int = 0
    later: list[Any] = field(default_factory=list)
    kind: type = list
    reads_too_early: bool = False

    def count(self) -> Any:
        """How many items there are."""
        filled: Any = self.filled
        return filled + len(self.later) if self.later else filled

    @property
    def tensor(self) -> Value | None:
        """The rows of all items, if each is one tensor."""
        [first, *more] = self.rows
        return None if more or self.rebuild([first]) is not first else first

    def append(self, item: Any) -> None:
        self.later.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        self.later.extend(items)

    def __iadd__(self, items: Iterable[Any]) -> Grown:
        self.later.extend(items)
        return self

    def __add__(self, items: list[Any]) -> list[Any]:
        return [*self, *items]

    def __radd__(self, items: list[Any]) -> list[Any]:
        return [*items, *self]

    def __len__(self) -> int:
        return operator.index(self.count())

    def __bool__(self) -> bool:
        if isinstance(self.filled, Scalar) and not self.later:
            self._require(1)
            return True
        return bool(self.later) or bool(self.filled > 0)

    def __iter__(self) -> Iterator[Any]:
        filled = [self.item(i) for i in range(operator.index(self.filled))]
        return iter([*filled, *self.later])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        from_end = -index if type(index) is int and index < 0 else 0
        if 0 < from_end <= len(self.later):
            return self.later[index]
        if isinstance(self.filled, Scalar):
            self._require_constant(index)
            self._require(from_end - len(self.later) if from_end else index + 1)
            return self.item(self.count() - from_end if from_end else index)
        return self.item(len(self.later) - from_end if from_end else index)

    def item(self, index: Any) -> Any:
        """The item of a number in the rows."""
        return self.rebuild([rows[index] for rows in self.rows])

    def __getattr__(self, name: str) -> Any:
        if hasattr(list, name):
            why = "how many items the list has, a loop decides as it runs"
            instead = "append in the loop, and change the list, or [*items], after it"
            raise Unavailable(why, instead)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "a list that a loop makes longer"

    def _slice(self, index: slice) -> Any:
        start, stop, step = index.start, index.stop, index.step
        if isinstance(self.filled, Scalar):
            bounds = (start, -1 if stop is None else stop)
            if step not in (None, 1) or any(type(x) is not int or x >= 0 for x in bounds):
                self._require_constant(None)
            return [self[i] for i in range(start, stop or 0)]
        is_flipped = index == slice(None, None, -1)
        if self.later or not (is_flipped or step in (None, 1)):
            return list(self)[index]
        rows = [x.flip(0) if is_flipped else x[index] for x in self.rows]
        for tensor in (*rows, *self.rows) if is_flipped else ():
            # The items are in two places from here on.
            if tensor.storage is not None:
                tensor.storage.frozen = True
        return Grown(self.rebuild, rows, rows[0].meta.shape[0])

    def _require_constant(self, index: Any) -> None:
        if type(index) is not int:
            why = "which item this is, and whether there is one, depends on the step of the loop"
            raise Unavailable(why, "take one from the end, as items[-1], or fill a tensor's rows")

    def _require(self, count: int) -> None:
        """Refuse what needs more items in the rows than there surely are."""
        if count > self.surely:
            self.reads_too_early = True
            why = "in the first steps of the loop, there are not as many items"
            raise Unavailable(why, "put items into the list before the loop")
