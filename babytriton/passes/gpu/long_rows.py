"""Kernels of few long rows on the GPU: sums of whole tensors, softmax of a single row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, open_kernel
from babytriton.passes.gpu.combining import SHUFFLED, Team, adding, start
from babytriton.passes.gpu.extents import Extent, parts, pieces, product, whole_parts
from babytriton.passes.gpu.pairs import PairWriter, pairs
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.rowwise import MOST_THREADS, REPEATED, WORDS_OF_MOST
from babytriton.passes.gpu.sweeps import Sweeps, SweepWriter
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    as_expr,
    below,
    each,
    guarded,
    launched,
    named,
    number,
    only,
    store,
    told,
    written_out,
)
from babytriton.passes.nests import offset
from babytriton.passes.rows import rows_first, shared_rows

# Threads of a block.
THREADS = 256

# Vectors that a thread has of a row, at least, before the row is shared by more blocks.
VECTORS = 4

# Rows that fill a GPU by themselves, and those that keep it as busy as pieces would, with a launch
# less, where registers hold them; and blocks that rows are cut into, together: more than any
# GPU runs at once, and few enough for each to combine their results.
MANY_ROWS, BUSY_ROWS = 128, 32
BLOCKS = 1024

# What a row must have at least to be cut up.
LONG = THREADS * VECTORS * 4 * 8


class LongRows(ScheduleRule):
    """Takes reductions along the last axes of a few long rows, with pointwise blocks around them.

    Cuts each row into pieces, a thread block for each. A sweep is a kernel, and leaves results of
    its reductions for each piece in memory; the kernels after it begin by combining those that they
    need, each in the same order. So results do not depend on the order in which blocks run. A
    maximum and the sum of exponentials after it share a sweep, and so do a sum and the squared
    distances from its mean: softmax and norms read their rows twice. Rows of a length that a call
    tells may be long: they are cut into as many pieces as it computes then.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos, repeat_calls=True, text=REPEATED)
        infos = rows_first(sch, infos)
        rows = shared_rows([sch.get(info.block_rv) for info in infos])
        program = None if rows is None else Program.of(sch, infos, rows)
        if program is None or not _is_long(program):
            return None
        reductions = [block for block in program.blocks if block.combine is not None]
        if any(block.dtype not in SHUFFLED for block in reductions):
            return None
        sweeps = Sweeps.of(program, pairs(program))
        if sweeps.is_passed_on:
            return None
        return PieceWriter.of(program, sweeps).written_out(sch.mod["main"])


def _is_long(program: Program) -> bool:
    rows, length = program.row_count, program.length
    is_kept = isinstance(length, int) and length <= MOST_THREADS * WORDS_OF_MOST
    return (
        isinstance(rows, int)
        and (rows < BUSY_ROWS if is_kept else rows <= MANY_ROWS)
        and not (isinstance(length, int) and length < LONG)
        and any(access.moves or access.jumps for _, access in program.accesses())
    )


@dataclass
class PieceWriter:
    """Writes the kernels out.

    Attributes:
        program: what is computed.
        sweeps: of the program.
        rows: how many there are.
        pieces: of each row.
        width: elements of a vector.
        partial: by the place of a reduction, what the pieces of all rows have.
        kept: by the place of the second of two reductions that share a pass, what else the pieces
            have of it.
    """

    program: Program
    sweeps: Sweeps
    rows: int
    pieces: Extent
    width: int
    partial: dict[int, tirx.Var] = field(default_factory=dict)
    kept: dict[int, tirx.Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._totals = {pair.second: pair for pair in self.sweeps.pairs}
        self._count, first = told("pieces", self.pieces)
        # Numbers that cannot be loaded as vectors are loaded several at a time as well.
        self._lanes = self.width if self.width > 1 else VECTORS
        self._apart = 1 if self.width > 1 else THREADS
        length = self.program.length
        self._is_whole = self.width > 1 and isinstance(length, int) and length % self.width == 0
        self._at_once = product([self._count, THREADS * self._lanes])
        count = parts if self._is_whole else whole_parts
        self._turns, second = told("steps", count(length, self._at_once))
        self._told = [*first, *second]

    @classmethod
    def of(cls, program: Program, sweeps: Sweeps) -> PieceWriter:
        """For a program of long rows."""
        assert isinstance(program.row_count, int)
        # Where there is one row, it is known where the vectors of it are.
        width = program.vector(has_tail=program.row_count == 1)
        most = tirx.floordiv(as_expr(program.length), number(THREADS * VECTORS * width))
        count = pieces(BLOCKS // program.row_count, most)
        return cls(program, sweeps, program.row_count, count, width)

    def written_out(self, func: tirx.PrimFunc) -> s_tir.Schedule:
        """The function as a kernel for each sweep, and one for what rows have one value of."""
        kernels = [self._of_sweep(sweep) for sweep in range(self.sweeps.count)]
        if self.sweeps.results():
            kernels.append(self._of_row_values())
        passed = [*self.partial.values(), *self.kept.values()]
        return written_out(func, [*self._told, *kernels], passed)

    def _of_sweep(self, number_: int) -> tirx.Stmt:
        """The kernel of a sweep, which leaves in memory what pieces have of its reductions."""
        writer = Writer(self.program, self._lanes, self._lanes, self._apart == 1)

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            piece, lane = ids["blockIdx.x"], ids["threadIdx.x"]
            writer.row = lambda: ids["blockIdx.y"]
            body = writer.load_of_rows()
            body += self._replayed(writer, self.sweeps.before(number_), lane)
            sweep = SweepWriter(writer, self.sweeps, number_, False, "piece")
            left = {self._of_pieces(place): total for place, total in sweep.totals.items()}
            for pair in sweep.pairs:
                left[self._kept_of_pieces(pair)] = pair.kept
            body += sweep.begin()
            body += self._steps(piece, lane, sweep.of_vector)
            body += sweep.across(self._team(writer, lane))
            body += self._left(writer, piece, lane, left) if left else []
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        extents = {"blockIdx.x": self._count, "blockIdx.y": self.rows, "threadIdx.x": THREADS}
        return launched(extents, thread)

    def _team(self, writer: Writer, lane: ir.Expr) -> Team:
        return Team(THREADS, lane, True, writer.allocations)

    def _of_pieces(self, place: int) -> tirx.Var:
        """Memory for what each piece has of a reduction."""
        block = self.program.blocks[place]
        self.partial[place] = self._memory(f"{block.buffer.name}_of_pieces", block.dtype)
        return self.partial[place]

    def _kept_of_pieces(self, pair: PairWriter) -> tirx.Var:
        """Memory for what each piece leaves besides what it has of a pair of reductions."""
        place = pair.pair.second
        name = f"{self.program.blocks[place].buffer.name}_{pair.pair.KEPT}"
        self.kept[place] = self._memory(name, str(pair.kept.ty.dtype))
        return self.kept[place]

    def _memory(self, name: str, dtype: str) -> tirx.Var:
        """Memory for a number of each piece."""
        return tirx.decl_buffer((as_expr(product([self.rows, self.pieces])),), dtype, name)

    def _left(
        self, writer: Writer, piece: ir.Expr, lane: ir.Expr, left: dict[tirx.Var, tirx.Var]
    ) -> Statements:
        """What is in registers, stored for the kernels after this one."""
        puts = [
            store(partial, only(value), writer.row() * as_expr(self._count) + piece)
            for partial, value in left.items()
        ]
        return guarded(tirx.EQ(lane, number(0)), puts)

    def _of_row_values(self) -> tirx.Stmt:
        """The kernel that stores what the rows have a value of."""
        writer = Writer(self.program, self.width, 0)

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            lane = ids["threadIdx.x"]
            writer.row = lambda: ids["blockIdx.x"]
            places = self.sweeps.results()
            body = self._replayed(writer, places, lane)
            for block in (self.program.blocks[place] for place in places):
                if block.is_result:
                    place = writer.at(offset(block.buffer, list(block.store.indices)), None)
                    put = store(block.buffer, only(writer.value(block)), place)
                    body += guarded(tirx.EQ(lane, number(0)), [put])
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        return launched({"blockIdx.x": self.rows, "threadIdx.x": THREADS}, thread)

    def _replayed(self, writer: Writer, places: list[int], lane: ir.Expr) -> Statements:
        """What the row has one value of at some places, from what the pieces left."""
        body: Statements = []
        done: set[int] = set()
        for place in places:
            block = self.program.blocks[place]
            if block.combine is None:
                body += writer.value_of_row(block)[1]
            elif place not in done:
                together = [n for n in places if self._is_combined_with(n, place)]
                body += self._combined(writer, together, lane)
                done.update(together)
        return body

    def _is_combined_with(self, place: int, other: int) -> bool:
        """Whether both are reductions of one sweep; the second of a pair waits for the first."""
        if place == other:
            return True
        is_reduction = self.program.blocks[place].combine is not None
        numbers = self.sweeps.numbers
        is_pair = place in self._totals or other in self._totals
        return is_reduction and numbers[place] == numbers[other] and not is_pair

    def _combined(self, writer: Writer, places: list[int], lane: ir.Expr) -> Statements:
        """Reductions of the row, from what the pieces have."""
        found: list[tuple[Block, tirx.Var]] = []
        shifts: dict[int, tirx.Var] = {}
        body: Statements = []
        for place in places:
            block = self.program.blocks[place]
            total = writer.total(block, "row")
            found.append((block, total))
            body.append(start(block, total))
            if place in self._totals:
                expr = self._totals[place].shift(writer)
                name = f"{block.buffer.name}_shift"
                shifts[place] = writer.allocate(1, str(expr.ty.dtype), name)
                body.append(tirx.BufferStore(shifts[place], expr, [number(0)]))

        def take(step: ir.Expr) -> Statements:
            piece = step * number(THREADS) + lane

            def of_piece(buffer: tirx.Var) -> ir.Expr:
                return tirx.BufferLoad(buffer, [writer.row() * as_expr(self._count) + piece])

            taken: Statements = []
            for place, (block, total) in zip(places, found):
                add, own = adding(block, total), of_piece(self.partial[place])
                if place in shifts:
                    pair = self._totals[place]
                    first, kept = map(of_piece, (self.partial[pair.first], self.kept[place]))
                    value, is_there = pair.of_piece(first, own, kept, only(shifts[place]))
                    taken += guarded(is_there, add(value))
                else:
                    taken += add(own)
            return guarded(below(piece, self._count, THREADS), taken)

        body += each("step", parts(self._count, THREADS), take, tirx.ForKind.SERIAL)
        body += self._team(writer, lane).combine(*found)
        for place, (_, total) in zip(places, found):
            if place in shifts:
                body += self._totals[place].settled(total, shifts[place])
        return body

    def _divides(self, length: Extent) -> bool:
        """Whether nothing is left of a row behind what all pieces take in at once."""
        sizes = length, self._at_once
        return all(isinstance(n, int) for n in sizes) and length % self._at_once == 0

    def _steps(
        self, piece: ir.Expr, lane: ir.Expr, body: Callable[[Vector], Statements]
    ) -> Statements:
        """The thread's vectors one after the other: pieces take turns along the row."""
        length = self.program.length

        def place(turn: ir.Expr, thread: ir.Expr) -> ir.Expr:
            turn = turn * as_expr(self._count) + piece
            return turn * number(THREADS * self._lanes) + thread

        def one(step: ir.Expr) -> Statements:
            own = lane * number(self._lanes) if self._apart == 1 else lane
            first, before = named("element", place(step, own), length, self.width)
            done = body(Vector(first, number(0), self._lanes, self._apart))
            is_there = below(first, length, self._at_once) if self._is_whole else None
            return [*before, *guarded(is_there, done)]

        def rest(n: ir.Expr) -> Statements:
            last = place(as_expr(self._turns), lane) + n * number(THREADS)
            last, before = named("element", last, length)
            own = Vector(last, number(0), 1)
            return [*before, *guarded(below(last, length, self._at_once), body(own))]

        done = each("step", self._turns, one, tirx.ForKind.SERIAL)
        if self._is_whole or self._divides(length):
            return done
        return [*done, *each("step", self._lanes, rest, tirx.ForKind.SERIAL)]
