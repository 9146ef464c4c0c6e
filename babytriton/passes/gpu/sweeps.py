"""Which blocks of a program go along its rows together: each of them as soon as it can.

Reductions that read nothing of each other share a sweep, such as the sum and the maximum of a row,
and so do the values of elements that they are of. What they read is loaded once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.gpu.accesses import Access
from babytriton.passes.gpu.combining import Team, adding, start
from babytriton.passes.gpu.pairs import Pair
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import by_lane, item_bytes


@dataclass(frozen=True)
class Sweeps:
    """The sweeps of a program.

    Attributes:
        program: what is computed.
        pairs: the reductions of one sweep of which the second reads the first.
        numbers: for each block, which sweep it takes part in; for a value of the row, how many
            sweeps it comes after.
    """

    program: Program
    pairs: tuple[Pair, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, program: Program, pairs: Iterable[Pair] = ()) -> Sweeps:
        """The fewest sweeps.

        Args:
            program: what is computed.
            pairs: reductions that may share one although the second reads the first.
        """
        totals = {pair.second: pair for pair in pairs}
        ready: dict[tirx.Var, int] = {}
        numbers: list[int] = []
        together: list[Pair] = []
        for place, block in enumerate(program.blocks):
            read = _read(block) & ready.keys()
            number = max((ready[buffer] for buffer in read), default=0)
            if place in totals:
                pair = totals[place]
                of_first = {program.blocks[n].buffer for n in (pair.first, *pair.between)}
                others = max((ready[buffer] for buffer in read - of_first), default=0)
                if others <= numbers[pair.first]:
                    number = numbers[pair.first]
                    together.append(pair)
            numbers.append(number)
            ready[block.buffer] = number + 1 if block.combine is not None else number
        return cls(program, tuple(together), tuple(numbers))

    @property
    def count(self) -> int:
        """How many sweeps there are."""
        blocks = zip(self.program.blocks, self.numbers)
        return 1 + max(number for block, number in blocks if block.has_elements)

    def members(self, sweep: int) -> list[int]:
        """The places of the blocks that take part in a sweep."""
        return [n for n in self._at(sweep) if self.program.blocks[n].has_elements]

    def values(self, sweep: int) -> list[int]:
        """The places of the values of the row that come right before a sweep."""
        return [n for n in self._at(sweep) if not self.program.blocks[n].has_elements]

    def _at(self, sweep: int) -> list[int]:
        return [place for place, number in enumerate(self.numbers) if number == sweep]

    def shared(self, sweep: int, keeps: bool) -> list[tuple[Access, bool]]:
        """What a sweep is to load for several blocks, and whether for later sweeps, too.

        Args:
            sweep: its number.
            keeps: whether what one sweep has loaded is there for the next.
        """
        found = []
        for one, readers in self._readers(keeps):
            own = [number for number in readers if keeps or number == sweep]
            if len(own) > 1 and min(own) == sweep:
                found.append((one, max(own) > sweep))
        return found

    def _readers(self, keeps: bool) -> list[tuple[Access, list[int]]]:
        """What is read from memory along the row, and the sweeps of the blocks that read it."""
        written = {block.buffer: n for block, n in zip(self.program.blocks, self.numbers)}
        found: list[tuple[Access, list[int]]] = []
        for reader, one in self.program.accesses():
            is_at_hand = one.buffer in written and (
                keeps or written[one.buffer] == self.numbers[reader]
            )
            if not one.moves or is_at_hand:
                continue
            readers = next((readers for other, readers in found if one.is_same(other)), None)
            if readers is None:
                found.append((one, [reader]))
            elif reader not in readers:
                readers.append(reader)
        return [(one, [self.numbers[n] for n in readers]) for one, readers in found]

    def words(self, least: int = 2) -> float:
        """Registers for what is kept of each element from sweep to sweep, at the fullest moment.

        With what columns are reduced to, which is kept from row to row.

        Args:
            least: bytes of a register that an element takes at least.
        """
        columns = [block for block in self.program.blocks if block.is_of_columns]
        spans = [(str(one.buffer.ty.dtype), min(own), max(own)) for one, own in self._readers(True)]
        for block, first in zip(self.program.blocks, self.numbers):
            if not is_of_row(block) and not block.is_of_columns:
                spans.append((block.dtype, first, self._last_reader(block, first)))
        sizes = [(max(item_bytes(dtype), least) / 4, first, last) for dtype, first, last in spans]
        return self._most(sizes) + sum(item_bytes(block.dtype) / 4 for block in columns)

    def values_kept(self) -> float:
        """What rows have one value of and is needed later on, at the fullest moment."""
        blocks = [pair for pair in zip(self.program.blocks, self.numbers) if is_of_row(pair[0])]
        return self._most([(1, first, self._last_reader(block, first)) for block, first in blocks])

    def _most(self, spans: list[tuple[float, int, int]]) -> float:
        """The largest sum of sizes of what is kept after a sweep."""
        moments = range(self.count)
        return max(sum(n for n, first, last in spans if first <= m < last) for m in moments)

    @property
    def is_passed_on(self) -> bool:
        """Whether a sweep reads what an earlier one computes of each element and does not store."""
        return any(
            self._last_reader(block, number) > number
            for block, number in zip(self.program.blocks, self.numbers)
            if not is_of_row(block) and not block.is_result
        )

    def _last_reader(self, block: Block, number: int) -> int:
        """The last sweep that reads what a block computes in its own one, or before it."""
        readers = zip(self.program.blocks, self.numbers)
        return max([n for reader, n in readers if block.buffer in _read(reader)], default=number)

    def before(self, sweep: int) -> list[int]:
        """The places of what rows have one value of, and a sweep needs."""
        read, own = self._of_rows(self.members(sweep)), self.members(sweep)
        return self._needed([n for n in read if n not in own and self.numbers[n] <= sweep])

    def results(self) -> list[int]:
        """The places of the results that rows have one value of, and of what these need."""
        blocks = enumerate(self.program.blocks)
        return self._needed([n for n, block in blocks if block.is_result and is_of_row(block)])

    def _needed(self, places: list[int]) -> list[int]:
        """Places, and those of what is needed to compute them once the reductions are done."""
        totals = {pair.second: (pair.first, *pair.between) for pair in self.pairs}
        found: set[int] = set()
        while places:
            place, *places = places
            found.add(place)
            is_value = self.program.blocks[place].combine is None
            needs = self._of_rows([place]) if is_value else totals.get(place, ())
            places += [other for other in needs if other not in found]
        return sorted(found)

    def _of_rows(self, readers: list[int]) -> list[int]:
        """The places of what rows have one value of, and some blocks read."""
        read = {buffer for place in readers for buffer in _read(self.program.blocks[place])}
        blocks = enumerate(self.program.blocks)
        return [n for n, block in blocks if block.buffer in read and is_of_row(block)]


def is_of_row(block: Block) -> bool:
    """Whether a row has one value of a block."""
    is_total = block.combine is not None and not block.is_of_columns
    return is_total or not block.has_elements


def _read(block: Block) -> set[tirx.Var]:
    return {load.source for load in nodes(block.value, ir.TensorLoad)}


class SweepWriter:
    """Writes what a thread does in one sweep.

    Args:
        writer: of the thread.
        sweeps: the program's.
        sweep: which of them.
        keeps: whether what it has loaded is there for the next one.
        ending: of the names of what is reduced.
    """

    def __init__(
        self, writer: Writer, sweeps: Sweeps, sweep: int, keeps: bool, ending: str
    ) -> None:
        blocks = sweeps.program.blocks
        if not keeps:
            writer.forget()
        self._load = writer.keep(sweeps.shared(sweep, keeps))
        self.pairs = [
            pair.writer(writer) for pair in sweeps.pairs if sweeps.numbers[pair.first] == sweep
        ]
        self.totals: dict[int, tirx.Var] = {}
        self._parts: list[Callable[[Vector], Statements]] = []
        self._reduced: list[tuple[Block, tirx.Var]] = []
        for pair in self.pairs:
            self.totals |= pair.totals
        for place in sweeps.members(sweep):
            block = blocks[place]
            if place in self.totals:
                continue
            if block.combine is None:
                self._parts.append(writer.pointwise(block))
                continue
            if block.is_of_columns:
                self._parts.append(writer.into_columns(block))
                continue
            total = writer.total(block, ending)
            self.totals[place] = total
            self._reduced.append((block, total))
            self._parts.append(_adding(writer, block, total))

    def begin(self) -> Statements:
        """What stands before the sweep."""
        starts = [start(block, total) for block, total in self._reduced]
        return [*starts, *(stmt for pair in self.pairs for stmt in pair.begin())]

    def of_vector(self, vector: Vector) -> Statements:
        """What is done for the elements of a vector."""
        parts = [*self._parts, *(pair.first_of for pair in self.pairs)]
        parts += [pair.second_of for pair in self.pairs]
        done = [stmt for part in parts for stmt in part(vector)]
        return [*self._load(vector), *by_lane(done, vector.width)]

    def across(self, team: Team) -> Statements:
        """Give each thread what all of them have together."""
        pairs = [stmt for pair in self.pairs for stmt in pair.across(team)]
        return [*team.combine(*self._reduced), *pairs]


def _adding(writer: Writer, block: Block, total: tirx.Var) -> Callable[[Vector], Statements]:
    add = adding(block, total)
    return lambda vector: writer.elements(block, vector, lambda _, value: add(value))
