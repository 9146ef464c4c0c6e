"""Kernels that work row by row on the GPU: softmax, layer_norm, sums along the last axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import CHEAP, inline_cheap, open_kernel, same_extents
from babytriton.passes.gpu.combining import SHUFFLED, Team, has_shuffles
from babytriton.passes.gpu.extents import Extent, known
from babytriton.passes.gpu.pairs import pairs
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.side_by_side import side_by_side
from babytriton.passes.gpu.sweeps import Sweeps, SweepWriter, is_of_row
from babytriton.passes.gpu.threads import most_threads
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    VECTOR,
    WARP,
    as_expr,
    below,
    both,
    each,
    guarded,
    launched,
    named,
    number,
    only,
    store,
    written_out,
)
from babytriton.passes.intrinsics import has_slow_functions
from babytriton.passes.nests import offset
from babytriton.passes.rows import rows_first, shared_rows, spatial
from babytriton.passes.statements import is_number

# Threads of a block whose rows are of one warp or less, and of rows of unknown length.
BLOCK = 256

# Threads of a row, at most; and words of registers for a row's values that each of them has then,
# and has with fewer threads. With what is computed they stay below 64 and 128 registers.
MOST_THREADS = 1024
WORDS_OF_MOST = 40
WORDS = 64

# Bytes of a word.
WORD = 4

# Words that a number of the row takes which a later sweep needs, with what is computed around it:
# with so many, NVIDIA's compiler spilled nothing in the kernels that were joined from others.
VALUE = 3

# How much text it may take to compute elements again in each sweep, where no register keeps them.
REPEATED = 1024

# Words that a thread should have of a row, before it is shared by more than a warp; of one of which
# no later sweep needs anything; and of one with weights, which several rows of a block share where
# each is a warp's.
BUSY, BRIEF, WEIGHTED = 16, 8, 32

# Rows that fill a GPU where each is a warp's, and a block has eight.
ROWS_OF_WARPS = 1024


class Rowwise(ScheduleRule):
    """Takes reductions along the last axes of shared rows, with pointwise blocks around them.

    Gives each row to threads of its own, each of which reads its part of the row once, in vectors
    of 16 bytes, and keeps it in registers from one block to the next. What they reduce is combined
    within warps by shuffles, and across warps in shared memory. Rows too long for the registers,
    and those of a length that a call tells, are read again by each block; a maximum and the sum of
    exponentials after it share a pass.

    Stands aside where blocks have elements of different numbers in a row, where nothing is read
    along the row, and for reductions that are not of one value by one operator.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        most = min(MOST_THREADS, most_threads(target))
        found: list[RowWriter] = []
        for repeat_calls, text in ((False, CHEAP), (True, CHEAP), (True, REPEATED)):
            if found and text == REPEATED:
                break
            sch, infos = kernel[0].copy(), list(kernel[1])
            own: list[SBlockInfo] = []
            if text == REPEATED:  # The row's own numbers, of which each thread has all it needs.
                infos = inline_cheap(sch, infos)
                own = _of_whole_rows(sch, infos)
            infos = inline_cheap(sch, infos, repeat_calls=repeat_calls, text=text, keep=own)
            infos = rows_first(sch, infos)
            rows = shared_rows([sch.get(info.block_rv) for info in infos])
            program = None if rows is None else Program.of(sch, infos, rows)
            shuffles = has_shuffles(target)
            program = None if program is None else side_by_side(program)
            layout = None
            if program is not None:
                layout = Layout.of(program, most, shuffles, Portion.of(program))
            if program is not None and layout is not None and self._suits(program, layout):
                found.append(RowWriter(program, layout, shuffles))
                if layout.is_kept:
                    break
        # Rows that are read again are read less often where values with calls are computed again.
        best = min(found, key=lambda writer: writer.sweeps.count, default=None)
        return None if best is None else written_out(func, [best.kernel()])

    def _suits(self, program: Program, layout: Layout) -> bool:
        """Whether a way to share rows out is good for what is computed."""
        return True


def _of_whole_rows(sch: s_tir.Schedule, infos: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """The blocks that have a number for each row, of which they reduce nothing."""
    rows = next((spatial(sch.get(info.block_rv)) for info in infos if info.is_reduction()), None)
    if rows is None:
        return []
    points = [info for info in infos if not info.is_reduction()]
    return [info for info in points if same_extents(spatial(sch.get(info.block_rv)), rows)]


class RowwiseTogether(Rowwise):
    """Takes what several kernels would do apart, if that reads no row more often than they do.

    So it is where all of a row is done in one sweep, where registers keep rows and have room for
    what so many blocks compute besides, and for rows too long for that in any kernel.
    """

    def _suits(self, program: Program, layout: Layout) -> bool:
        sweeps = Sweeps.of(program, () if layout.is_kept else pairs(program))
        if sweeps.count == 1:
            return True
        if not layout.is_kept:
            length = program.length
            return not isinstance(length, int) or length > MOST_THREADS * WORDS_OF_MOST
        assert isinstance(layout.steps, int)
        return has_registers(sweeps, layout.threads, layout.steps * layout.width)


def has_registers(sweeps: Sweeps, threads: int, elements: int) -> bool:
    """Whether registers hold so many elements of a row, with what many blocks compute besides.

    Args:
        sweeps: what is computed.
        threads: of a row.
        elements: that each has.
    """
    # Of narrow numbers compilers keep what these are as floats.
    words = max(sweeps.words(least=4), 1) * elements
    return words + VALUE * sweeps.values_kept() <= most_words(threads)


def most_words(threads: int) -> int:
    """Words of registers for a row's values, of a thread among so many."""
    return WORDS_OF_MOST if threads > MOST_THREADS // 2 else WORDS


@dataclass(frozen=True)
class Portion:
    """How much of a row a thread should have.

    Attributes:
        words: that each number of a row counts for.
        busy: how many of them a thread should have, before more threads share a row.
        of_warp: likewise, before more than a warp does.
    """

    words: float
    busy: int
    of_warp: int

    @classmethod
    def of(cls, program: Program) -> Portion:
        """For threads that have a row, or a part of one."""
        kept, width = Sweeps.of(program).words(), program.vector(has_tail=False)
        if width == 1:  # Loads of single numbers take as long as those of twice as many.
            return cls(max(kept, 2), BUSY, BUSY)
        if not kept:
            return cls(VECTOR / (WORD * width), BRIEF, BRIEF)
        return cls(max(kept, 1), BUSY, WEIGHTED if _suits_warps(program, width) else BUSY)

    @classmethod
    def of_many(cls, program: Program) -> Portion:
        """For threads that go through many rows."""
        return cls(max(Sweeps.of(program).words(), 1), BUSY, BUSY)


def _suits_warps(program: Program, width: int) -> bool:
    """Whether rows that share weights are best a warp's each, of which registers have room for one.

    As many as a call tells are taken to be many.
    """
    rows, length = program.row_count, program.length
    if not isinstance(length, int) or (isinstance(rows, int) and rows < ROWS_OF_WARPS):
        return False
    elements = -(-length // (WARP * width)) * width
    has_room = has_registers(Sweeps.of(program), WARP, elements)
    computes_functions = has_slow_functions([block.value for block in program.blocks])
    return has_room and not computes_functions and _has_weights(program)


def _has_weights(program: Program) -> bool:
    """Whether all rows read something that differs along them."""
    rows = {variable for variable, _ in program.rows}
    return any(
        access.moves and rows.isdisjoint(nodes(access.place, tirx.Var))
        for _, access in program.accesses()
    )


@dataclass(frozen=True)
class Layout:
    """How rows are shared out.

    Attributes:
        threads: of a row.
        rows: of a thread block.
        width: elements of a vector.
        steps: vectors that a thread has of a row.
        is_kept: whether the row's values stay in registers.
    """

    threads: int
    rows: int
    width: int
    steps: Extent
    is_kept: bool

    @classmethod
    def of(cls, program: Program, most: int, shuffles: bool, portion: Portion) -> Layout | None:
        """For at most so many threads a row; None where threads cannot share the program.

        Args:
            program: what is computed.
            most: threads of a block.
            shuffles: whether threads pass each other values without memory.
            portion: what each should have of a row.
        """
        blocks = [block for block in program.blocks if not block.is_of_columns]
        reductions = [block for block in blocks if block.combine is not None]
        if shuffles and any(block.dtype not in SHUFFLED for block in reductions):
            return None
        if not any(access.moves or access.jumps for _, access in program.accesses()):
            return None
        length, width = program.length, program.vector(has_tail=False)
        if not isinstance(length, int):
            return cls._again(program, min(most, BLOCK), width)
        vectors, kept = -(-length // width), max(Sweeps.of(program).words(), 1)
        threads = 1
        while threads < min(vectors, WARP):
            threads *= 2
        if portion.words * length > threads * portion.of_warp:
            while threads < min(most, vectors) and portion.words * length > threads * portion.busy:
                threads *= 2
        steps = -(-vectors // threads)
        if kept * steps * width > most_words(threads):
            return cls._again(program, min(most, MOST_THREADS // 2), width)
        # What rows share in memory is a block's.
        is_apart = threads <= WARP and (shuffles or threads == 1)
        rows = max(1, min(most, BLOCK) // threads) if is_apart else 1
        return cls(threads, rows, width, steps, True)

    @classmethod
    def _again(cls, program: Program, threads: int, width: int) -> Layout | None:
        """For rows that each sweep reads again: no element may be passed from sweep to sweep."""
        if Sweeps.of(program, pairs(program)).is_passed_on:
            return None
        count = tirx.ceildiv(as_expr(program.length), number(threads * width))
        return cls(threads, 1, width, sym.Analyzer().simplify(count), False)


class RowWriter:
    """Writes a row-wise kernel out.

    Args:
        program: what is computed.
        layout: how its rows are shared out.
        shuffles: whether threads pass each other values without memory.
    """

    def __init__(self, program: Program, layout: Layout, shuffles: bool) -> None:
        self.program = program
        self.layout = layout
        self._shuffles = shuffles
        count = layout.width
        if layout.is_kept:
            assert isinstance(layout.steps, int)
            count *= layout.steps
        self.writer = Writer(program, layout.width, count)
        self.sweeps = Sweeps.of(program, () if layout.is_kept else pairs(program))

    def kernel(self) -> tirx.Stmt:
        """What each thread does."""
        blocks = tirx.ceildiv(as_expr(self.program.row_count), number(self.layout.rows))
        return launched({"blockIdx.x": known(blocks), **self.threads()}, self._thread)

    def threads(self) -> dict[str, Extent]:
        """How many threads a block has."""
        layout = self.layout
        counts: dict[str, Extent] = {"threadIdx.y": layout.rows, "threadIdx.x": layout.threads}
        if self._has_rows_across:
            counts = {"threadIdx.y": layout.threads, "threadIdx.x": layout.rows}
        if counts["threadIdx.y"] == 1:
            del counts["threadIdx.y"]
        return counts

    @property
    def _has_rows_across(self) -> bool:
        """Whether neighbouring threads are those of neighbouring rows."""
        return self.program.is_apart or self.layout.threads == 1

    def _thread(self, ids: dict[str, ir.Expr]) -> Statements:
        line = self.take_place(ids)

        def own() -> ir.Expr:
            if self.layout.rows == 1:
                return ids["blockIdx.x"]
            return ids["blockIdx.x"] * number(self.layout.rows) + line

        body = self.of_row(own, self.layout.rows)
        return [*map(tirx.AllocBuffer, self.writer.allocations), *body]

    def first_of_block(self) -> ir.Expr:
        """The first of a row's elements that the block has."""
        return number(0)

    def take_place(self, ids: dict[str, ir.Expr]) -> ir.Expr:
        """Tell a thread which of a row's elements it has; the number of the row in its block."""
        layout = self.layout
        along, across = (ids.get(f"threadIdx.{axis}", number(0)) for axis in "xy")
        self.lane, line = (across, along) if self._has_rows_across else (along, across)
        teams = (layout.rows, line) if self.program.is_apart else ()
        memory = self.writer.allocations
        self._team = Team(layout.threads, self.lane, self._shuffles, memory, *teams)
        return line

    def of_row(self, own: Callable[[], ir.Expr], step: Extent) -> Statements:
        """All that a thread does of one row.

        Args:
            own: gives the row's number, which may be past the last one.
            step: how many rows are gone through at once: none is past where these are a number of
                steps, or where there is one at a time.
        """
        layout, count, writer = self.layout, self.program.row_count, self.writer
        has_rest = layout.rows > 1 and below(number(0), count, step) is not None
        totals = [b for b in self.program.blocks if b.combine is not None and is_of_row(b)]
        is_alone = layout.threads == 1 or not totals

        def row() -> ir.Expr:
            # Threads without a row work on the last one: they pass values to others, or wait.
            return tirx.Min(own(), as_expr(count) - 1) if has_rest and not is_alone else own()

        is_row = own() < as_expr(count) if has_rest else None
        writer.row = row
        writer.is_row = None if is_alone else is_row
        body = writer.load_of_rows()
        for sweep in range(self.sweeps.count):
            body += [*self._values(sweep), *self._sweep(sweep)]
        body += self._values(self.sweeps.count)
        return guarded(is_row, body) if is_alone else body

    def _values(self, sweep: int) -> Statements:
        """The values of the row before a sweep."""
        body: Statements = []
        for place in self.sweeps.values(sweep):
            block = self.program.blocks[place]
            value, done = self.writer.value_of_row(block)
            body += [*done, *self._result(block, value)]
        return body

    def _sweep(self, number_: int) -> Statements:
        """All that is done in one sweep, with the results of its reductions."""
        keeps = self.layout.is_kept
        sweep = SweepWriter(self.writer, self.sweeps, number_, keeps, "row")
        body = [*sweep.begin(), *self.steps(sweep.of_vector), *sweep.across(self._team)]
        body += [stmt for pair in sweep.pairs for stmt in pair.settled()]
        for place, total in sorted(sweep.totals.items()):
            body += self._result(self.program.blocks[place], total)
        return body

    def _result(self, block: Block, value: tirx.Var) -> Statements:
        """The store of a value of the row, if that is a result."""
        if not block.is_result:
            return []
        place = self.writer.at(offset(block.buffer, list(block.store.indices)), None)
        is_first = None if self.layout.threads == 1 else tirx.EQ(self.lane, number(0))
        is_one = both(self.writer.is_row, is_first)
        return guarded(is_one, [store(block.buffer, only(value), place)])

    def steps(self, body: Callable[[Vector], Statements]) -> Statements:
        """The thread's vectors one after the other, of which only the last may be past the row.

        Tests in between would keep the loads of a loop from being on their way together.
        """
        layout, length = self.layout, self.program.length
        at_once = layout.threads * layout.width
        begin = self.first_of_block()

        def one(step: ir.Expr, is_whole: bool = False) -> Statements:
            vector = step * number(layout.threads) + self.lane
            first = begin + vector * number(layout.width)
            first, before = named("element", first, length, layout.width)
            kept = step * number(layout.width) if layout.is_kept else number(0)
            is_there = None if is_whole else below(first, length, at_once)
            return [*before, *guarded(is_there, body(Vector(first, kept, layout.width)))]

        kind = tirx.ForKind.UNROLLED if layout.is_kept else tirx.ForKind.SERIAL
        if not isinstance(length, int) or length < at_once or not is_number(begin, 0):
            return each("step", layout.steps, one, kind)
        whole = length // at_once
        done = each("step", whole, partial(one, is_whole=True), kind)
        return done if length % at_once == 0 else [*done, *one(number(whole))]
