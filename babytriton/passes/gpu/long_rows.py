"""Kernels of few long rows on the GPU: sums of whole tensors, softmax of a single row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, nodes, open_kernel
from babytriton.passes.gpu.combining import SHUFFLED, Team, adding, start
from babytriton.passes.gpu.extents import Extent, parts, pieces, product
from babytriton.passes.gpu.online import Online, OnlineWriter, is_there, pairs, scaled, settled
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.writer import Statements, Vector, Writer
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

# Rows that fill a GPU by themselves; and blocks that rows are cut into, together: more than any
# GPU runs at once, and few enough for each to combine their results.
MANY_ROWS = 128
BLOCKS = 512

# What a row must have at least to be cut up.
LONG = THREADS * VECTORS * 4 * 8


class LongRows(ScheduleRule):
    """Takes reductions along the last axes of a few long rows, with pointwise blocks around them.

    Cuts each row into pieces, a thread block for each. A reduction leaves a result for each piece
    in memory; the kernels after it begin by combining these, each in the same order. So results
    do not depend on the order in which blocks run. A maximum and the sum of exponentials after it
    share a kernel: a softmax reads its rows twice. Rows of a length that a call tells may be long:
    they are cut into as many pieces as it computes then.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = rows_first(sch, inline_cheap(sch, infos, repeat_calls=True))
        rows = shared_rows([sch.get(info.block_rv) for info in infos])
        program = None if rows is None else Program.of(sch, infos, rows)
        if program is None or not _is_long(program):
            return None
        reductions = [block for block in program.blocks if block.combine is not None]
        if any(block.dtype not in SHUFFLED for block in reductions):
            return None
        if any(program.is_passed_on(block) for block in program.blocks):
            return None
        return PieceWriter.of(program).written_out(sch.mod["main"])


def _is_long(program: Program) -> bool:
    rows, length = program.row_count, program.length
    return (
        isinstance(rows, int)
        and rows <= MANY_ROWS
        and not (isinstance(length, int) and length < LONG)
        and any(access.moves for _, access in program.accesses())
    )


@dataclass
class PieceWriter:
    """Writes the kernels out.

    Attributes:
        program: what is computed.
        rows: how many there are.
        pieces: of each row.
        width: elements of a vector.
        partial: by the place of a reduction, what the pieces of all rows have.
        shifts: by the place of a sum of exponentials that shares a pass, what the pieces took from
            the exponents.
    """

    program: Program
    rows: int
    pieces: Extent
    width: int
    partial: dict[int, tirx.Var] = field(default_factory=dict)
    shifts: dict[int, tirx.Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tops = {pair.top: pair for pair in pairs(self.program)}
        self._totals = {pair.total: pair for pair in self._tops.values()}
        self._count, first = told("pieces", self.pieces)
        self._at_once = product([self._count, THREADS * self.width])
        self._turns, second = told("steps", parts(self.program.length, self._at_once))
        self._told = [*first, *second]

    @classmethod
    def of(cls, program: Program) -> PieceWriter:
        """For a program of long rows."""
        assert isinstance(program.row_count, int)
        width = program.vector(has_tail=False)
        most = tirx.floordiv(as_expr(program.length), number(THREADS * VECTORS * width))
        count = pieces(BLOCKS // program.row_count, most)
        return cls(program, program.row_count, count, width)

    def written_out(self, func: tirx.PrimFunc) -> s_tir.Schedule:
        """The function as a kernel for each way along the rows, and one for their values."""
        kernels = [self._along_rows(places) for places in self._ways()]
        if any(block.is_result for block in self._of_rows(len(self.program.blocks))):
            kernels.append(self._of_row_values())
        passed = [*self.partial.values(), *self.shifts.values()]
        return written_out(func, [*self._told, *kernels], passed)

    def _of_rows(self, end: int) -> list[Block]:
        """The blocks before a place that have a value for each row."""
        blocks = self.program.blocks[:end]
        return [block for block in blocks if block.combine is not None or not block.has_elements]

    def _ways(self) -> list[list[int]]:
        """The places of the blocks that go along the rows; of those in one list that do it at once.

        Reductions do where the later ones need nothing that is computed from the first one on.
        """
        blocks, found = self.program.blocks, list[list[int]]()
        plain = {n for n, x in enumerate(blocks) if x.combine is not None and n not in self._tops}
        for place, block in enumerate(blocks):
            if not block.has_elements or place in self._totals:
                continue
            way = found[-1] if found else []
            since = {other.buffer for other in blocks[way[0] : place]} if way else set()
            read = {load.source for load in nodes(block.value, ir.TensorLoad)}
            if way and plain.issuperset([*way, place]) and not read & since:
                way.append(place)
            else:
                found.append([place])
        return found

    def _along_rows(self, places: Sequence[int]) -> tirx.Stmt:
        """The kernel of blocks that go along the rows."""
        writer = Writer(self.program, self.width, self.width)

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            piece, lane = ids["blockIdx.x"], ids["threadIdx.x"]
            writer.row = lambda: ids["blockIdx.y"]
            body = [*writer.load_of_rows(), *self._replayed(writer, places[0], lane)]
            for place in places:
                block = self.program.blocks[place]
                if block.combine is None:
                    body += self._steps(piece, lane, writer.pointwise(place, block))
                elif place in self._tops:
                    body += self._both(writer, self._tops[place], piece, lane)
                else:
                    body += self._reduction(writer, place, piece, lane)
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        extents = {"blockIdx.x": self._count, "blockIdx.y": self.rows, "threadIdx.x": THREADS}
        return launched(extents, thread)

    def _reduction(self, writer: Writer, place: int, piece: ir.Expr, lane: ir.Expr) -> Statements:
        """What a piece has of a reduction, left in memory."""
        block = self.program.blocks[place]
        total = writer.allocate(1, block.dtype, f"{block.buffer.name}_of_piece")
        add = adding(block, total)

        def of_vector(vector: Vector) -> Statements:
            return writer.elements(place, block, vector, lambda _, value: add(value))

        self.partial[place] = self._of_pieces(f"{block.buffer.name}_of_pieces", block.dtype)
        return [
            start(block, total),
            *self._steps(piece, lane, of_vector),
            *self._team(writer, lane).combine(block, total),
            *self._left(writer, piece, lane, {self.partial[place]: total}),
        ]

    def _both(self, writer: Writer, online: Online, piece: ir.Expr, lane: ir.Expr) -> Statements:
        """What a piece has of two reductions in one pass, left in memory."""
        writer.keep_reread((online.top, online.total))
        both = OnlineWriter(writer, online)
        left = {}
        for place, value in ((online.top, both.top), (online.total, both.total)):
            block = self.program.blocks[place]
            self.partial[place] = self._of_pieces(f"{block.buffer.name}_of_pieces", block.dtype)
            left[self.partial[place]] = value
        name, dtype = f"{self.program.blocks[online.total].buffer.name}_shifts", both.shift.ty.dtype
        self.shifts[online.total] = self._of_pieces(name, str(dtype))
        left[self.shifts[online.total]] = both.shift
        return [
            *both.begin(),
            *self._steps(piece, lane, both.of_vector),
            *both.across(self._team(writer, lane)),
            *self._left(writer, piece, lane, left),
        ]

    def _team(self, writer: Writer, lane: ir.Expr) -> Team:
        return Team(THREADS, lane, True, writer.allocations)

    def _of_pieces(self, name: str, dtype: str) -> tirx.Var:
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
            body = self._replayed(writer, len(self.program.blocks), lane)
            for block in self._of_rows(len(self.program.blocks)):
                if block.is_result:
                    place = writer.at(offset(block.buffer, list(block.store.indices)), None)
                    put = store(block.buffer, only(writer.value(block)), place)
                    body += guarded(tirx.EQ(lane, number(0)), [put])
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        return launched({"blockIdx.x": self.rows, "threadIdx.x": THREADS}, thread)

    def _replayed(self, writer: Writer, end: int, lane: ir.Expr) -> Statements:
        """The values of the row that blocks before a place have, from what the pieces left."""
        body: Statements = []
        for place, block in enumerate(self.program.blocks[:end]):
            if block.combine is not None:
                body += self._combined(writer, place, lane)
            elif not block.has_elements:
                body += writer.value_of_row(block)[1]
        return body

    def _combined(self, writer: Writer, place: int, lane: ir.Expr) -> Statements:
        block, partial = self.program.blocks[place], self.partial[place]
        total = writer.allocate(1, block.dtype, f"{block.buffer.name}_of_row")
        writer.computed(block, total)
        add = adding(block, total)
        body = [start(block, total)]
        shift = None
        if place in self._totals:
            expr = writer.of_row(block, self._totals[place].shift)
            shift = writer.allocate(1, str(expr.ty.dtype), f"{block.buffer.name}_shift")
            body.append(tirx.BufferStore(shift, expr, [number(0)]))

        def take(step: ir.Expr) -> Statements:
            piece = step * number(THREADS) + lane

            def of_piece(buffer: tirx.Var) -> ir.Expr:
                return tirx.BufferLoad(buffer, [writer.row() * as_expr(self._count) + piece])

            body = add(of_piece(partial))
            if shift is not None:
                value = scaled(of_piece(partial), of_piece(self.shifts[place]), only(shift))
                body = guarded(is_there(of_piece(partial)), add(value))
            return guarded(below(piece, self._count, THREADS), body)

        steps = each("step", parts(self._count, THREADS), take, tirx.ForKind.SERIAL)
        together = self._team(writer, lane).combine(block, total)
        rest = [] if shift is None else settled(total, shift)
        return [*body, *steps, *together, *rest]

    def _steps(
        self, piece: ir.Expr, lane: ir.Expr, body: Callable[[Vector], Statements]
    ) -> Statements:
        """The thread's vectors one after the other: pieces take turns along the row."""
        length = self.program.length

        def one(step: ir.Expr) -> Statements:
            turn = step * as_expr(self._count) + piece
            first = (turn * number(THREADS) + lane) * number(self.width)
            first, before = named("element", first, length)
            vector = Vector(first, number(0), self.width)
            return [*before, *guarded(below(first, length, self._at_once), body(vector))]

        return each("step", self._turns, one, tirx.ForKind.SERIAL)
