"""Rows that kernels read and write where they lie, in the place of copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from babytriton.plan import Allocation, Block, Kind, Launch, Loop, Row, Step, all_of, names_in
from babytriton.runtime.interop import ALIGNMENT


@dataclass(frozen=True)
class Rows:
    """The rows that steps of a block take where they lie.

    Attributes:
        rows: by the variables for copies of them, which there are none of.
        bytes: how long each is; None where a call tells.
        begin: the number of the step before which each is to be told.
        needless: the numbers of the steps that copy.
        carried: those that steps of a loop leave to the next one, by its states.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    bytes: dict[str, int | None] = field(default_factory=dict)
    begin: dict[str, int] = field(default_factory=dict)
    needless: set[int] = field(default_factory=set)
    carried: dict[str, str] = field(default_factory=dict)

    def only(self) -> frozenset[str]:
        """The variables that no tensor is in."""
        return frozenset((*self.rows, *self.carried))


def rows_of(
    block: Block, on_gpu: bool, loop: Loop | None = None, only: frozenset[str] = frozenset()
) -> Rows:
    """The rows that a block's steps take where they lie.

    A copy of a row is needless where only kernels read it, which need no more of it than an
    address, and nothing writes to the tensor that the row is of before the last has. What is
    copied to a row may be written there at once where only kernels read it, and nothing else reads
    or writes that tensor meanwhile. It may also be what a step of a loop leaves to the next one, if
    each step writes another row.

    Args:
        block: of a program.
        on_gpu: whether it runs on one.
        loop: that it is the body of, if it is one.
        only: what there is only an address of around it.
    """
    found = Rows()
    for number, step in enumerate(block.steps):
        if not isinstance(step, Launch) or step.row is None:
            continue
        if on_gpu and step.row.multiple % ALIGNMENT:
            continue
        trying = _Trying(block, number, step, step.row, on_gpu, loop, only)
        if step.stored is None:
            trying.read(found)
        else:
            trying.write(step.stored, found)
    return found


@dataclass(frozen=True)
class _Trying:
    """Whether a copy is needless.

    Attributes:
        block: that it is in.
        number: of the step.
        step: that copies.
        row: which one.
        on_gpu: whether kernels run on one.
        loop: that the block is the body of, if it is one.
        only: what there is only an address of around it.
    """

    block: Block
    number: int
    step: Launch
    row: Row
    on_gpu: bool
    loop: Loop | None
    only: frozenset[str]

    def read(self, found: Rows) -> None:
        """Add a row that is read, if it may be read where it lies."""
        if len(self.step.outputs) != 1:
            return
        (name,) = self.step.written
        readers = self._readers(name, self.number + 1)
        if name in self.block.results or not self._take({name}, readers, found):
            return
        if not self._is_of_tensor(name, found) or self._may_change(readers):
            return
        [output] = self.step.outputs
        found.rows[name], found.begin[name] = self.row, self.number
        found.bytes[name] = None if output.sizes else _bytes(output)
        found.needless.add(self.number)

    def write(self, name: str, found: Rows) -> None:
        """Add what is copied to a row, if it may be written there at once."""
        steps, of = self.block.steps, self.row.of
        made = [n for n, step in enumerate(steps[: self.number]) if name in step.written]
        producer = steps[made[0]] if made else None
        if not isinstance(producer, Launch) or name in found.rows:
            return
        [output] = [output for output in producer.outputs if output.name == name]
        between = steps[made[0] : self.number]
        if output.sizes or any(of in (*step.arguments, *step.written) for step in between):
            return
        readers = self._readers(name, made[0])
        others = [step for step in readers if step is not self.step]
        if not self._take({name}, others, found) or self._may_change(others):
            return
        if not self._is_of_tensor(name, found):
            return
        after = [x for x in found.rows if self._is_read_from(x, made[0])]
        if not all(self._is_apart(x, found, _bytes(output)) for x in after):
            return
        if name in self.block.results:
            state = self._carried(name, output, found)
            if state is None:
                return
            found.carried[state] = name
        found.rows[name], found.begin[name] = self.row, made[0]
        found.bytes[name] = _bytes(output)
        found.needless.add(self.number)

    def _is_of_tensor(self, name: str, found: Rows) -> bool:
        """Whether a row is one of a tensor, and no row is one of it: what such a row is read by
        would be a reader of both."""
        of = {row.of for row in found.rows.values()}
        return self.row.of not in found.only() | self.only and name not in of

    def _may_change(self, steps: Sequence[Step]) -> bool:
        """Whether steps may write to the tensor that the row is of, also by another name of it."""
        of = self.row.of
        return any(_updates(step, of) or of in step.kept for step in steps)

    def _is_apart(self, name: str, found: Rows, length: int) -> bool:
        """Whether a row shares nothing with this one, which is so many bytes long."""
        other = found.rows[name]
        if other.of != self.row.of:
            return True
        if sorted(other.terms) != sorted(self.row.terms):
            return False
        (low, bytes), (high, _) = sorted(
            [(other.constant, found.bytes[name]), (self.row.constant, length)], key=lambda x: x[0]
        )
        return bytes is not None and low + bytes <= high

    def _carried(self, name: str, output: Allocation, found: Rows) -> str | None:
        """The state of the loop that a row may be the next one of; None if it may not."""
        loop, results = self.loop, self.block.results
        if loop is None or loop.again is not None or results.count(name) > 1:
            return None
        state, first = next(
            (state, first)
            for state, first, x in zip(loop.written, loop.initial, results)
            if x == name
        )
        steps = list(all_of(self.block.steps))
        if first is None or state in results or not self._take({state, name}, steps, found):
            return None
        if sum(_updates(step, self.row.of) for step in steps) > 1:
            return None
        if any(self.row.of in step.kept for step in steps):
            return None
        [*own] = [bytes for number, bytes in self.row.terms if number == loop.number]
        rest = [number for number, _ in self.row.terms if number != loop.number]
        inside = {loop.number} | {x.number for x in steps if isinstance(x, Loop)}
        is_fixed = not any(names_in(number) & inside for number in rest)
        is_another = len(own) == 1 and abs(own[0]) >= _bytes(output)
        return state if is_fixed and is_another else None

    def _take(self, names: set[str], steps: Sequence[Step], found: Rows) -> bool:
        """Whether steps need no more of tensors than where they lie."""
        only = found.only() | self.only | names
        for step in steps:
            if step is self.step:
                continue
            if names & {*step.kept, *(step.updated if isinstance(step, Launch) else ())}:
                return False
            if not isinstance(step, Launch):
                continue
            given = (*step.arguments, *step.written)
            if any(x in names and kind != Kind.ADDRESS for x, kind in zip(given, step.kinds)):
                return False
            if self.on_gpu and names & {*given} and telling(step, only) is None:
                return False
        return True

    def _readers(self, name: str, start: int) -> list[Step]:
        """Steps from one to the last that has to do with a tensor, with those inside of them."""
        steps = self.block.steps
        uses = [n for n, step in enumerate(steps) if name in (*step.arguments, *step.written)]
        last = max(uses, default=start - 1)
        return list(all_of(steps[start : last + 1]))

    def _is_read_from(self, name: str, start: int) -> bool:
        """Whether a step reads a tensor, of those from a number on."""
        return any(name in step.arguments for step in self.block.steps[start:])


def telling(step: Launch, only: frozenset[str]) -> int | None:
    """The number of the tensor from which a GPU's kernel learns which GPU and stream it is on.

    Args:
        step: the call of the kernel.
        only: the variables of which there is only an address.
    """
    given = (*step.arguments, *step.written)
    places = [
        n
        for n, kind in enumerate(step.kinds)
        if kind in (Kind.ADDRESS, Kind.TENSOR) and given[n] not in only
    ]
    return max(places, default=None)


def _updates(step: Step, name: str) -> bool:
    return isinstance(step, Launch) and name in step.updated


def _bytes(output: Allocation) -> int:
    return output.dtype.torch.itemsize * math.prod(map(int, output.shape))
