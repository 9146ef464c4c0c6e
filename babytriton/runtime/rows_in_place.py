"""Rows that kernels read and write where they lie, in the place of copies."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence, Set
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
        early: by the numbers of steps, what is allocated before them, since they write it, and not
            before the needless ones that would have.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    bytes: dict[str, int | None] = field(default_factory=dict)
    begin: dict[str, int] = field(default_factory=dict)
    needless: set[int] = field(default_factory=set)
    carried: dict[str, str] = field(default_factory=dict)
    early: dict[int, list[Allocation]] = field(default_factory=dict)

    def only(self) -> frozenset[str]:
        """The variables that no tensor is in."""
        return frozenset((*self.rows, *self.carried))


def rows_of(
    block: Block,
    on_gpu: bool,
    loop: Loop | None = None,
    only: frozenset[str] = frozenset(),
    of_loop: bool = False,
) -> Rows:
    """The rows that a block's steps take where they lie.

    A copy of a row is needless where only kernels read it, which need no more of it than an
    address, and nothing writes to the tensor that the row is of before the last has. What is
    copied to a row may be written there at once where only kernels read it, and nothing else reads
    or writes that tensor meanwhile. It may also be what a step of a loop leaves to the next one, if
    each step writes another row.

    What is copied to another shape alone may be written in that one at once, if nothing else reads
    it, but in loops, which have memory for it.

    Args:
        block: of a program.
        on_gpu: whether it runs on one.
        loop: that it is the body of, if it is one.
        only: what there is only an address of around it.
        of_loop: whether a loop may have memory for what its steps write.
    """
    finding = _Finding(block, on_gpu, loop, only)
    for number, step in enumerate(block.steps):
        if not isinstance(step, Launch) or step.row is None:
            continue
        if on_gpu and step.row.multiple % ALIGNMENT:
            continue
        if step.stored is None:
            finding.read(number, step, step.row)
            if number not in finding.found.needless and not of_loop:
                finding.shape(number, step, step.row)
        else:
            finding.write(number, step.stored, step.row)
    return finding.found


class _Finding:
    """Looks at copies of rows, one after the other, for those that are needless.

    Args:
        block: that they are in.
        on_gpu: whether kernels run on one.
        loop: that the block is the body of, if it is one.
        only: what there is only an address of around it.
    """

    def __init__(self, block: Block, on_gpu: bool, loop: Loop | None, only: frozenset[str]) -> None:
        self.found = Rows()
        self._block, self._on_gpu, self._loop = block, on_gpu, loop
        self._results = Counter(block.results)
        self._only = set(only)  # also what was found
        self._rows_of: dict[str, list[str]] = {}  # by tensors, the rows that were found
        self._inner = [list(all_of([step])) for step in block.steps]
        self._uses: dict[str, list[int]] = {}  # by tensors, the numbers of the steps that have them
        self._last_read: dict[str, int] = {}
        self._made: dict[str, int] = {}  # by which step
        for number, step in enumerate(block.steps):
            for name in {*step.arguments, *step.written}:
                self._uses.setdefault(name, []).append(number)
            self._last_read |= dict.fromkeys(step.arguments, number)
            self._made |= dict.fromkeys(step.written, number)

    def read(self, number: int, step: Launch, row: Row) -> None:
        """Add a row that a step copies, if it may be read where it lies."""
        if len(step.outputs) != 1:
            return
        [output] = step.outputs
        name, last = output.name, self._uses[output.name][-1]
        if name in self._results or not self._is_of_tensor(name, row):
            return
        readers = self._within(name, number + 1, last)
        if not self._take({name}, readers) or self._may_change(row.of, number + 1, last):
            return
        self._add(name, row, number, None if output.sizes else _bytes(output))
        self.found.needless.add(number)

    def shape(self, number: int, step: Launch, row: Row) -> None:
        """Have what a step copies to another shape written in that one, if that may be."""
        name, made = row.of, self._made.get(row.of)
        producer = None if made is None else self._block.steps[made]
        if made is None or not isinstance(producer, Launch) or len(step.outputs) != 1:
            return
        [output] = step.outputs
        # None of the lengths is known where a call tells sizes: they may be others then.
        is_all = any(
            x.name == name and not x.sizes and not output.sizes and _bytes(x) == _bytes(output)
            for x in producer.outputs
        )
        is_alone = self._uses[name] == [made, number] and name not in self._results
        is_taken = name in self._only or name in self._rows_of or made in self.found.needless
        if not is_all or not is_alone or is_taken or not self._take({name}, [made]):
            return
        self._add(name, Row(output.name, (), 0), made, _bytes(output))
        self.found.early.setdefault(made, []).append(output)
        self.found.needless.add(number)

    def write(self, number: int, name: str, row: Row) -> None:
        """Add a row that a step copies something to, if that may be written there at once."""
        made = self._made.get(name)
        producer = None if made is None else self._block.steps[made]
        if made is None or not isinstance(producer, Launch) or name in self.found.rows:
            return
        outputs = [output for output in producer.outputs if output.name == name]
        if not outputs or outputs[0].sizes or not self._is_of_tensor(name, row):
            return
        last, length = self._uses[name][-1], _bytes(outputs[0])
        others = [n for n in self._within(name, made, last) if n != number]
        meanwhile = self._within(row.of, made, last)
        beside = {n for n in meanwhile if self._is_beside(n, row, length)}
        if any(n < number for n in meanwhile if n not in beside):
            return
        if not self._take({name}, others):
            return
        if self._may_change(row.of, made, last, but={number, *beside}):
            return
        after = [x for x in self._rows_of.get(row.of, ()) if self._last_read.get(x, -1) >= made]
        if not all(self._are_apart(x, row, length) for x in after):
            return
        if name in self._results:
            state = self._carried(number, name, row, length)
            if state is None:
                return
            self.found.carried[state] = name
            self._only.add(state)
        self._add(name, row, made, length)
        self.found.needless.add(number)

    def _add(self, name: str, row: Row, begin: int, length: int | None) -> None:
        self.found.rows[name], self.found.begin[name] = row, begin
        self.found.bytes[name] = length
        self._only.add(name)
        self._rows_of.setdefault(row.of, []).append(name)

    def _within(self, name: str, first: int, last: int) -> list[int]:
        """The numbers of the steps that have to do with a tensor, of those from one to another."""
        uses = self._uses.get(name, [])
        return uses[bisect_left(uses, first) : bisect_right(uses, last)]

    def _is_of_tensor(self, name: str, row: Row) -> bool:
        """Whether a row is one of a tensor, and no row is one of it: what such a row is read by
        would be a reader of both."""
        return row.of not in self._only and name not in self._rows_of

    def _is_beside(self, number: int, row: Row, length: int) -> bool:
        """Whether a step is not run that copied to a row which shares nothing with this one.

        What it copied is written there before, where it is computed: no order of the two matters.
        """
        step = self._block.steps[number]
        name = step.stored if isinstance(step, Launch) else None
        if name is None or number not in self.found.needless:
            return False
        return self._are_apart(name, row, length)

    def _may_change(self, of: str, first: int, last: int, but: Set[int] = frozenset()) -> bool:
        """Whether steps may write to the tensor that a row is of, also by another name of it.

        Args:
            of: the tensor.
            first, last: the numbers of the steps, the last one included.
            but: of these, those that are not meant.
        """
        steps = [x for n in self._within(of, first, last) if n not in but for x in self._inner[n]]
        return any(_updates(step, of) or of in step.kept for step in steps)

    def _are_apart(self, name: str, row: Row, length: int) -> bool:
        """Whether a row shares nothing with another one of its tensor, which is so many bytes."""
        other = self.found.rows[name]
        if sorted(other.terms) != sorted(row.terms):
            return False
        (low, bytes), (high, _) = sorted(
            [(other.constant, self.found.bytes[name]), (row.constant, length)], key=lambda x: x[0]
        )
        return bytes is not None and low + bytes <= high

    def _carried(self, number: int, name: str, row: Row, length: int) -> str | None:
        """The state of the loop that a row may be the next one of; None if it may not."""
        loop = self._loop
        if loop is None or loop.again is not None or self._results[name] > 1:
            return None
        state, first = next(
            (state, first)
            for state, first, x in zip(loop.written, loop.initial, self._block.results)
            if x == name
        )
        uses = [n for x in (state, name) for n in self._uses.get(x, ()) if n != number]
        if first is None or state in self._results or not self._take({state, name}, uses):
            return None
        others = [x for n in self._uses[row.of] for x in self._inner[n]]
        if sum(_updates(x, row.of) for x in others) > 1 or any(row.of in x.kept for x in others):
            return None
        [*own] = [bytes for place, bytes in row.terms if place == loop.number]
        rest = [place for place, _ in row.terms if place != loop.number]
        steps = [x for inner in self._inner for x in inner]
        inside = {loop.number} | {x.number for x in steps if isinstance(x, Loop)}
        is_fixed = not any(names_in(place) & inside for place in rest)
        is_another = len(own) == 1 and abs(own[0]) >= length
        return state if is_fixed and is_another else None

    def _take(self, names: set[str], numbers: Sequence[int]) -> bool:
        """Whether steps need no more of tensors than where they lie."""
        for step in (x for n in numbers for x in self._inner[n]):
            if names & {*step.kept, *(step.updated if isinstance(step, Launch) else ())}:
                return False
            if not isinstance(step, Launch):
                continue
            given = (*step.arguments, *step.written)
            if any(x in names and kind != Kind.ADDRESS for x, kind in zip(given, step.kinds)):
                return False
            if self._on_gpu and names & {*given}:
                own = {x for x in given if x in names or x in self._only}
                if telling(step, own) is None:
                    return False
        return True


def telling(step: Launch, only: Set[str]) -> int | None:
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
