"""What a loop appends to lists: it is put into rows of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from babytriton.frontend.grown import Grown, Row
from babytriton.frontend.joining import Differ, leaves, rebuilt
from babytriton.frontend.program import Program
from babytriton.frontend.scope import Scope
from babytriton.frontend.slots import Slot
from babytriton.frontend.state import refill
from babytriton.ops.mutation import set_items
from babytriton.ops.value import Scalar, Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder


@dataclass(frozen=True, eq=False)
class Growth:
    """What the steps of a loop append to a list.

    Attributes:
        names: that stand for the list, each in a scope.
        target: the list.
        before: its items before the loop.
        appended: what one step appends, all of one type.
    """

    names: list[tuple[Scope, str]]
    target: list[Any]
    before: list[Any]
    appended: list[Any]

    @classmethod
    def of(
        cls, names: list[tuple[Scope, str]], target: Any, before: list[Any], after: list[Any]
    ) -> Growth | None:
        """What a step has appended to a list, if it has done nothing else to it.

        Args:
            names: that stand for the list, each in a scope.
            target: the list.
            before: its items before the step.
            after: those after it.
        """
        appended = after[len(before) :]
        is_longer = appended and all(x is y for x, y in zip(before, after))
        if type(target) is not list or not is_longer or not all(map(_is_of_tensors, appended)):
            return None
        try:
            for item in (*before, *appended):
                leaves(item, appended[0])
        except Differ:
            return None
        return cls(names, target, before, appended)

    @property
    def name(self) -> str:
        """What the user calls the list."""
        _, name = self.names[-1]
        return name if name.isidentifier() else "items"

    def bind(self, found: Grown) -> None:
        """Let the names stand for another list."""
        for scope, name in self.names:
            scope.bind(name, found)

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

    def grown(self, rows: Sequence[Value], steps: Any) -> Grown:
        """The list after so many steps."""
        return Grown(self._item, rows, self.total(steps), len(self.before))

    def items(self, rows: Sequence[Value]) -> list[Any]:
        """The items after the loop, where it is known how many there are."""
        count = operator.index(rows[0].meta.shape[0])
        return [self._item([Row(tensor, i) for tensor in rows]) for i in range(count)]

    def put(self, builder: Builder, inside: Grown) -> list[Value]:
        """Put what a step has appended into the rows.

        Returns:
            The tensors that were put.

        Raises:
            Differ: it is not as many items, or they are of other types.
        """
        if len(inside.later) != len(self.appended):
            raise Differ(self.appended, inside.later)
        given = [leaves(item, self.model) for item in inside.later]
        for number, item in enumerate(given):
            place = inside.filled + number if number else inside.filled
            for rows, leaf in zip(inside.rows, item):
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
        inside: the list as the step sees it.
        put: the tensors that the step has appended.
    """

    growth: Growth
    slots: list[Slot]
    inside: Grown | None = None
    put: Sequence[Value] = ()


_ELSEWHERE = "an item of a list that grows in a loop"
"""In place of the items of such a list, where a step may know it by more than its name."""


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

    def note(
        self, names: list[tuple[Scope, str]], target: Any, before: list[Any], after: list[Any]
    ) -> bool:
        """Take note of a list that a step has changed, if it has made it longer."""
        found = Growth.of(names, target, before, after) if self._counter is not None else None
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
            is_followed = growth.name in followed
            initial = growth.initial(self._program.builder, self._counter.count)
            slots = [Slot(self._program, growth.name, rows, is_followed) for rows in initial]
            self._growing.append(_Growing(growth, slots))

    def enter(self) -> None:
        """Let a step see the lists as they are when it begins."""
        if self._counter is not None:
            self.number = self._counter.number()
        for growing in self._growing:
            growth = growing.growth
            growing.inside = growth.grown([slot.inside for slot in growing.slots], self.number)
            growth.bind(growing.inside)
            refill(growth.target, [_ELSEWHERE])

    def end(self) -> None:
        """Put what a step has appended into the rows.

        Raises:
            Differ: another try of it has appended otherwise.
        """
        for growing in self._growing:
            assert growing.inside is not None
            growing.put = growing.growth.put(self._program.builder, growing.inside)
            for slot in growing.slots:
                slot.result = slot.inside.expr

    def finish(self, after: Iterator[Value]) -> None:
        """Let names stand for the lists after the loop.

        Args:
            after: what slots give after it.
        """
        for growing in self._growing:
            assert self._counter is not None
            growth, count = growing.growth, self._counter.count
            found = growth.grown([next(after) for _ in growing.slots], count)
            if isinstance(count, int):
                refill(growth.target, growth.items(found.rows))
                self._program.numbered.note_list(growth.target, found)
            else:
                growth.bind(found)

    @property
    def slots(self) -> list[Slot]:
        """Those of all rows."""
        return [slot for growing in self._growing for slot in growing.slots]

    @property
    def appended_to(self) -> list[list[Any]]:
        """What Python appends to in a step."""
        return [x.inside.later for x in self._growing if x.inside is not None]

    @property
    def held(self) -> list[Value]:
        """The tensors that the lists have held before the loop, or hold after a step."""
        before = [leaf for x in self._growing for leaf in leaves(x.growth.before)]
        return [*before, *(tensor for x in self._growing for tensor in x.put)]

    @property
    def reads_too_early(self) -> bool:
        """Whether a step has asked for an item of a list that is there in later steps alone."""
        return any(x.inside is not None and x.inside.reads_too_early for x in self._growing)


def _is_of_tensors(item: Any) -> bool:
    found = leaves(item)
    return bool(found) and all(type(leaf) in (Value, Row) for leaf in found)
