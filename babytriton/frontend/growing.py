"""What a loop appends to lists: it is put into rows of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton.frontend.grown import Grown, Head, Row
from babytriton.frontend.joining import Differ, leaves, rebuilt
from babytriton.frontend.program import Program
from babytriton.frontend.slots import Slot
from babytriton.ops.mutation import set_items
from babytriton.ops.value import Scalar, Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder


@dataclass(frozen=True, eq=False)
class Growth:
    """What the steps of a loop append to a list.

    Attributes:
        name: of the list, for the tensors that its items stand in.
        target: the list.
        before: its items before the loop.
        appended: what one step appends, all of one type.
    """

    name: str
    target: Grown
    before: list[Any]
    appended: list[Any]

    @classmethod
    def of(cls, name: str, target: Grown, before: Grown, after: Grown) -> Growth | None:
        """What a step has appended to a list, if it has done nothing else to it.

        Args:
            name: of the list.
            target: the list.
            before: what it was before the step.
            after: what it is after it.
        """
        if before.head is not None or after.head is not None:
            return None
        first, appended = before.later, after.later[len(before) :]
        is_longer = appended and all(x is y for x, y in zip(first, after.later))
        # A tensor that is two of the items would be two tensors as rows.
        tensors = [leaf for item in appended for leaf in leaves(item)]
        is_longer = is_longer and len({id(x) for x in tensors}) == len(tensors)
        if not is_longer or not all(map(_is_of_tensors, (*first, *appended))):
            return None
        try:
            for item in (*first, *appended):
                leaves(item, appended[0])
        except Differ:
            return None
        return cls(name, target, first, appended)

    @property
    def model(self) -> Any:
        """An item."""
        return self.appended[0]

    def total(self, steps: Any) -> Any:
        """How many items there are after so many steps."""
        count = steps * len(self.appended) if len(self.appended) > 1 else steps
        return count + len(self.before) if self.before else count

    def initial(self, builder: Builder, steps: Any) -> list[Value]:
        """The rows before the first step, for so many steps."""
        found = []
        for i, leaf in enumerate(leaves(self.model)):
            own = {"dtype": leaf.meta.dtype}
            count, shape = steps * len(self.appended), tuple(leaf.meta.shape)
            rows = builder.call(torch.empty, ((count, *shape),), own)
            if self.before:
                first = torch.stack([leaves(item)[i] for item in self.before])
                rows = torch.cat([first, rows])
            found.append(rows)
        return found

    def head(self, rows: Sequence[Value], steps: Any) -> Head:
        """The items after so many steps."""
        return Head(self._item, rows, self.total(steps), self.before)

    def items(self, rows: Sequence[Value]) -> list[Any]:
        """The items after the loop, where it is known how many there are."""
        count = operator.index(rows[0].meta.shape[0])
        places = range(len(self.before), count)
        return [*self.before, *(self._item([Row(x, i) for x in rows]) for i in places)]

    def put(self, builder: Builder, head: Head) -> list[Value]:
        """Put what a step has appended into the rows.

        Args:
            builder: emits it.
            head: the items as the step saw them when it began.

        Returns:
            The tensors that were put.

        Raises:
            Differ: it is not as many items, or they are of other types.
        """
        appended = self.target.later
        if len(appended) != len(self.appended) or self.target.head is not head:
            raise Differ(self.appended, appended)
        given = [leaves(item, self.model) for item in appended]
        for number, item in enumerate(given):
            place = head.count + number if number else head.count
            for rows, leaf in zip(head.rows, item):
                set_items(builder, rows, place, leaf)
        return [leaf for item in given for leaf in item]

    def _item(self, tensors: Sequence[Value]) -> Any:
        return rebuilt(self.model, iter(tensors))


@dataclass(frozen=True)
class Counter:
    """How a loop counts its steps.

    Attributes:
        count: how many there are, which is known when it begins.
        number: emits the number of the step that is being compiled, from 0.
    """

    count: Any
    number: Callable[[], Scalar]


@dataclass
class _Growing:
    """A list that each step appends to.

    Attributes:
        growth: what it appends.
        slots: of the rows that this is put into.
        head: the items as the step sees them.
        put: the tensors that the step has appended.
    """

    growth: Growth
    slots: list[Slot]
    head: Head
    put: Sequence[Value] = ()


class Lists:
    """The lists that the steps of one loop make longer.

    Attributes:
        number: of the step that is being compiled.

    Args:
        program: being compiled.
        counter: how it counts its steps; None where it does not know how many there are.
    """

    def __init__(self, program: Program, counter: Counter | None) -> None:
        self._program = program
        self._counter = counter
        self._growths: list[Growth] = []
        self._growing: list[_Growing] = []

    def note(self, target: Any, before: Any, after: Any) -> bool:
        """Take note of a list that a step has changed, if it has made it longer.

        Args:
            target: what has changed.
            before: what it was before the step.
            after: what it is after it.
        """
        if self._counter is None or not isinstance(target, Grown):
            return False
        names = [name for x in self._program.scopes for name in x.names if x.names[name] is target]
        name = next((name for name in names if name.isidentifier()), "items")
        found = Growth.of(name, target, before, after)
        self._growths += [] if found is None else [found]
        return found is not None

    def begin(self, followed: Collection[str]) -> None:
        """Begin another try of a step.

        Args:
            followed: the names of those that gradients flow to from a step.
        """
        self._growing = []
        for growth in self._growths:
            assert self._counter is not None
            initial = growth.initial(self._program.builder, self._counter.count)
            names = [f"{growth.name}_{i}" if i else growth.name for i in range(len(initial))]
            slots = [
                Slot(self._program, name, rows, name in followed)
                for name, rows in zip(names, initial)
            ]
            head = growth.head([slot.inside for slot in slots], 0)
            self._growing.append(_Growing(growth, slots, head))

    def enter(self) -> None:
        """Let a step see the lists as they are when it begins."""
        if self._counter is not None:
            self.number = self._counter.number()
        for growing in self._growing:
            growing.head = growing.growth.head(growing.head.rows, self.number)
            growing.growth.target.become(Grown((), growing.head))
            # An item may be in another place as well.
            _freeze(growing.head.rows, True)

    def end(self) -> None:
        """Put what a step has appended into the rows.

        Raises:
            Differ: another try of it has appended otherwise.
        """
        for growing in self._growing:
            _freeze(growing.head.rows, False)
            growing.put = growing.growth.put(self._program.builder, growing.head)
            for slot in growing.slots:
                slot.result = slot.inside.expr

    def finish(self, after: Iterator[Value]) -> None:
        """Let the lists hold what they do after the loop.

        Args:
            after: what slots give after it.
        """
        for growing in self._growing:
            assert self._counter is not None
            growth, count = growing.growth, self._counter.count
            head = growth.head([next(after) for _ in growing.slots], count)
            if isinstance(count, int):
                growth.target.become(growth.items(head.rows))
                self._program.numbered.note_list(growth.target, head)
            else:
                growth.target.become(Grown((), head))

    @property
    def slots(self) -> list[Slot]:
        """Those of all rows."""
        return [slot for growing in self._growing for slot in growing.slots]

    @property
    def targets(self) -> list[Grown]:
        """The lists."""
        return [growing.growth.target for growing in self._growing]

    @property
    def held(self) -> list[Value]:
        """The tensors that the lists have held before the loop, or hold after a step."""
        before = [leaf for x in self._growing for leaf in leaves(x.growth.before)]
        return [*before, *(tensor for x in self._growing for tensor in x.put)]

    @property
    def reads_too_early(self) -> bool:
        """Whether a step has asked for an item of a list that is there in later steps alone."""
        return any(growing.head.reads_too_early for growing in self._growing)


def _freeze(tensors: Sequence[Value], frozen: bool) -> None:
    for tensor in tensors:
        if tensor.storage is not None:
            tensor.storage.frozen = frozen


def _is_of_tensors(item: Any) -> bool:
    """Whether it is a tensor, or a tuple of such: what can be changed by itself is more."""
    if isinstance(item, tuple):
        return bool(item) and all(map(_is_of_tensors, item))
    return type(item) in (Value, Row)
