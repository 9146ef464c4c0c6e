"""Reductions of columns on the GPU: sums along other axes than the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_one, is_pointwise, open_kernel
from babytriton.passes.gpu.column_totals import (
    Together,
    Total,
    has_moments,
    registers,
    together,
    total_of,
)
from babytriton.passes.gpu.combining import Lines
from babytriton.passes.gpu.elementwise import vector_kernel
from babytriton.passes.gpu.extents import Extent, parts, product, whole_parts
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.row_counts import RowCounts
from babytriton.passes.gpu.sweeps import Sweeps
from babytriton.passes.gpu.threads import most_threads
from babytriton.passes.gpu.tiles import AT_ONCE, BLOCK, BLOCKS, THREADS, Tile
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    LANE,
    Place,
    as_expr,
    below,
    by_lane,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    named,
    number,
    told,
    written_out,
)

# Threads of a block at most, and bytes that they share at most, for as many blocks to run at once
# as registers allow.
MOST_THREADS = 1024
SHARED = 32768

# What is done with all of a piece, if there are several.
_Finish: TypeAlias = Callable[[Writer, Sequence[Total], ir.Expr | None, Vector], Statements]


@dataclass(frozen=True)
class _Reading:
    """What a thread reads.

    Attributes:
        take_in: what takes a row in, by its place among the thread's own.
        begin: what is done with the first row before.
        around: what stands around what takes a few rows in, after which it has so many; or all.
        rows: how many a line has, after lines were halved so many times; None if nothing asks.
    """

    take_in: Callable[[ir.Expr, ir.Expr, Vector], Statements]
    begin: Callable[[ir.Expr, Vector], Statements] = lambda row, vector: []
    around: Callable[[Statements, ir.Expr | None], Statements] = lambda rows, count: rows
    rows: Callable[[ir.Expr, ir.Expr], ir.Expr] | None = None


_Read: TypeAlias = Callable[[Writer, Sequence[Total], ir.Expr, ir.Expr], _Reading]


class Columns(ScheduleRule):
    """Takes reductions along other axes than the last, with pointwise blocks around them.

    Gives each thread a vector of columns beside that of its neighbour; where these are too few to
    fill a GPU, lines of threads have the same ones, take turns along the rows, and combine what
    they have in shared memory. Reductions of the same columns that need nothing of each other, such
    as those of a norm's two gradients, are done together: what they read is loaded once. Where a
    block for each of the columns' tiles does not fill a GPU, and rows are many, they are cut into
    pieces, whose results a second kernel combines; of sizes that a call tells, into as many as it
    computes then. Pointwise blocks that have a value for each column are done by the kernel that
    ends a reduction; others are kernels of their own. Stands aside for what is not read along the
    last axis.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos, repeat_calls=True)
        most = min(MOST_THREADS, most_threads(target))
        groups = _groups(sch, infos, most)
        if not any(group[0].is_reduction() for group in groups):
            return None
        kernels: list[tirx.Stmt] = []
        passed: list[tirx.Var] = []
        for group in groups:
            if not group[0].is_reduction():
                nest = Program.of(sch, group, []) if is_pointwise(sch, group[0]) else None
                if nest is None or not self._suits(nest):
                    return None
                kernels.append(vector_kernel(nest, most_threads(target)))
                continue
            writer = ColumnWriter.of(sch, group, most)
            if writer is None or not self._suits(writer.program):
                return None
            kernels += writer.kernels()
            passed += writer.passed
        return written_out(sch.mod["main"], kernels, passed)

    def _suits(self, program: Program) -> bool:
        """Whether it is good to do what a kernel computes so."""
        return True


class ColumnsTogether(Columns):
    """Takes what several kernels would do apart, if none of it turns something: tiles do that."""

    def _suits(self, program: Program) -> bool:
        return not any(access.jumps for _, access in program.accesses())


def _groups(sch: s_tir.Schedule, infos: Sequence[SBlockInfo], most: int) -> list[list[SBlockInfo]]:
    """The blocks, those together that go along the same columns, each as early as it can.

    What a group needs is done by the groups before it; each block writes a buffer of its own.
    """
    groups: list[list[SBlockInfo]] = []
    made: dict[tirx.Var, int] = {}  # the group that writes a buffer
    for info in infos:
        block = sch.get(info.block_rv)
        earliest = max((made.get(region.source, 0) for region in block.reads), default=0)
        fitting = (
            place
            for place, group in enumerate(groups[earliest:], earliest)
            if group[0].is_reduction() and ColumnWriter.of(sch, [*group, info], most) is not None
        )
        home = next(fitting, len(groups))
        if home == len(groups):
            groups.append([])
        groups[home].append(info)
        made |= {region.source: home for region in block.writes}
    return groups


class ColumnWriter:
    """Writes the kernels out.

    Args:
        program: what is computed, the reductions first.
        own: the reductions, those in one that are done together.
        pieces: that the rows are cut into.
        tile: the columns of a thread block, and how its threads share their rows out.
        combining: the same of a block that combines what pieces have.

    Attributes:
        reductions: the blocks that reduce columns.
        partial: memory for what each piece has of them, one piece behind the other.
    """

    def __init__(
        self,
        program: Program,
        own: Sequence[Together],
        pieces: Extent,
        tile: Tile,
        combining: Tile,
    ) -> None:
        self.program = program
        self._own = own
        self._width = tile.width
        self._tile = tile
        self._combining = combining
        self._length = program.length
        self._pieces = pieces
        self.reductions = program.reductions
        self._are_moments = has_moments(own)
        count = as_expr(product([pieces, self._length]))
        self.partial = [
            tirx.decl_buffer((count,), dtype, f"{name}_of_pieces")
            for blocks in own
            for name, dtype in registers(blocks)
        ]

    @classmethod
    def of(cls, sch: s_tir.Schedule, group: Sequence[SBlockInfo], most: int) -> ColumnWriter | None:
        """For reductions, and pointwise blocks of what they have; None if warps cannot share them.

        Or if one thread block cannot hold what they have.

        Args:
            sch: the kernel.
            group: its blocks.
            most: threads of a block.
        """
        program = Program.of_columns(sch, group)
        if program is None:
            return None
        moving = {reader for reader, access in program.accesses() if access.moves}
        own, read = together(program), _read(program)
        if own is None:
            return None
        are_moments = has_moments(own)
        width = min(program.vector(has_tail=False), 4 if are_moments else 8)
        if not moving.issuperset(range(len(program.reductions))):
            return None
        sizes = [item_bytes(dtype) for blocks in own for _, dtype in registers(blocks)]
        threads = min(SHARED // (width * sum(sizes)), most)
        if threads < min(BLOCK, most):
            return None
        item = max(item_bytes(str(buffer.ty.dtype)) for buffer in read)
        full = THREADS // 2 if are_moments else THREADS
        tile, pieces = Tile.of(program.length, program.row_count, width, item, threads, full)
        few = pieces * (2 if are_moments else 1) if isinstance(pieces, int) else BLOCKS
        combining, _ = Tile.of(program.length, few, width, max(sizes), threads)
        return cls(program, own, pieces, tile, combining)

    @property
    def passed(self) -> list[tirx.Var]:
        """Memory for what one of its kernels leaves for the other."""
        return [] if is_one(self._pieces) else self.partial

    def kernels(self) -> list[tirx.Stmt]:
        """One, or one of pieces and one that combines them."""
        tile, rows = self._tile, self.program.row_count
        count, before = told("pieces", self._pieces)
        counts, then = RowCounts.told(rows, count, tile.lines) if self._are_moments else (None, [])
        read, reads = partial(self._of_row, counts), len(_read(self.program))
        if is_one(self._pieces):
            return [*then, *self._kernel(tile, rows, 1, reads, read, self._finished)]
        return [
            *before,
            *then,
            *self._kernel(tile, rows, count, reads, read, self._left),
            *self.combining(count, counts),
        ]

    def combining(self, count: Extent, counts: RowCounts | None = None) -> Statements:
        """The kernel that combines what so many pieces have, of so many rows if these count."""
        tile, reads = self._combining, len(self.partial)
        read = partial(self._of_piece, counts)
        return self._kernel(tile, count, 1, reads, read, self._finished)

    def _kernel(
        self,
        tile: Tile,
        rows: Extent,
        count: Extent,
        reads: int,
        read: _Read,
        finish: _Finish,
    ) -> Statements:
        """A kernel whose lines of threads take turns along rows, after what it is told.

        Args:
            tile: the columns of a thread block.
            rows: how many there are.
            count: of the pieces that they are cut into.
            reads: how many vectors a thread loads of a row.
            read: what takes a row in.
            finish: what is done with all that a piece has.
        """
        writer, width = Writer(self.program, self._width, self._width), self._width
        totals = [total_of(writer, blocks) for blocks in self._own]
        at_once = product([count, tile.lines])
        # Counts that a call tells take registers, of which there would be too few.
        busy = 2 if self._are_moments and not isinstance(rows, int) else 1
        steps = max(AT_ONCE // (reads * busy), 1)
        turns, before = told("turns", whole_parts(rows, product([at_once, steps])))
        turns = 0 if is_one(turns) else turns  # with the rest

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            lane, line = ids["threadIdx.x"], ids.get("threadIdx.y", number(0))
            piece = ids.get("blockIdx.y")
            reading = read(writer, totals, line, number(0) if piece is None else piece)
            first = (ids["blockIdx.x"] * number(tile.lanes) + lane) * number(width)
            first, body = named("column", first, self._length, width)
            vector = Vector(first, number(0), width)
            is_there = below(first, self._length, tile.columns)

            def clear(n: ir.Expr) -> Statements:
                return [stmt for total in totals for stmt in total.clear(n)]

            def step(place: ir.Expr, asks: bool = False) -> Statements:
                own = place if piece is None else place * as_expr(count) + piece
                row, before = named("row", own * number(tile.lines) + line, rows)
                is_row = row < as_expr(rows) if asks else None
                return [*before, *guarded(is_row, reading.take_in(row, place, vector))]

            begin = each(LANE, width, clear)
            own = line if piece is None else piece * number(tile.lines) + line
            own = own if isinstance(rows, int) else tirx.Min(own, rows - 1)
            ways = self._ways(writer, (rows, at_once), (turns, steps), step, reading.around)
            along = writer.one_by_one([lambda: reading.begin(own, vector), *ways])
            done = finish(writer, totals, piece, vector)
            if tile.lines == 1:
                body += guarded(is_there, [*begin, *along, *done])
            else:
                lines = self._lines(writer, tile, lane, line, reading)
                put, take = lines.combine([total.part for total in totals])
                body += [*begin, *guarded(is_there, along), *put]
                body += guarded(tirx.EQ(line, number(0)), [*take, *guarded(is_there, done)])
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        extents = {"blockIdx.x": parts(self._length, tile.columns)}
        if not is_one(count):
            extents["blockIdx.y"] = count
        if tile.lines > 1:
            extents["threadIdx.y"] = tile.lines
        extents["threadIdx.x"] = tile.lanes
        return [*before, launched(extents, thread)]

    def _ways(
        self,
        writer: Writer,
        rows: tuple[Extent, Extent],
        turns: tuple[Extent, int],
        step: Callable[..., Statements],
        around: Callable[[Statements, ir.Expr | None], Statements],
    ) -> list[Callable[[], Statements]]:
        """What takes a thread through its rows: turns, each of some steps that wait for no other.

        And what takes it through the rest.

        Args:
            writer: of the thread.
            rows: how many there are, and in how many of them threads make a step at once.
            turns: how many whole ones there are, and their steps.
            step: what a thread does of a row, by that one's number among its own; and whether it
                is to ask if there is such a row.
            around: what stands around the rows of a turn, after which the thread has so many.
        """
        (count, at_once), (whole, steps) = rows, turns
        first = as_expr(whole) * number(steps)

        def turn(n: ir.Expr) -> Statements:
            body = each("step", steps, lambda k: step(n * number(steps) + k))
            return around(body, (n + 1) * number(steps))

        def rest() -> Statements:
            if not (isinstance(count, int) and isinstance(at_once, int)):
                return around(each("step", steps, lambda k: step(first + k, True)), None)
            assert isinstance(whole, int)
            more, left = divmod(count - whole * steps * at_once, at_once)
            ways = [lambda: each("step", more, lambda k: step(first + k))] if more else []
            ways += [lambda: step(first + number(more), True)] if left else []
            return around(writer.one_by_one(ways), None) if ways else []

        if isinstance(whole, int) and whole == 0:
            return [rest]
        return [lambda: each("turn", whole, turn, tirx.ForKind.SERIAL), rest]

    def _of_row(
        self,
        counts: RowCounts | None,
        writer: Writer,
        totals: Sequence[Total],
        line: ir.Expr,
        piece: ir.Expr,
    ) -> _Reading:
        """What takes in what is reduced."""
        counts = None if counts is None else counts.within(piece)
        load = writer.keep(Sweeps.of(self.program).shared(0, keeps=False))

        def take_in(row: ir.Expr, _: ir.Expr, vector: Vector) -> Statements:
            writer.row = lambda: row
            done = load(vector)
            for total in totals:
                done += total.of_row(vector)
            return by_lane(done, self._width)

        def begin(row: ir.Expr, vector: Vector) -> Statements:
            writer.row = lambda: row
            done = [stmt for total in totals for stmt in total.from_row(vector)]
            return by_lane([*load(vector), *done], self._width) if done else []

        def around(rows: Statements, count: ir.Expr | None) -> Statements:
            counted: Statements = []
            if counts is not None:
                has = counts.of_part(line) if count is None else count
                counted = [stmt for total in totals for stmt in total.counted(has)]

            def over(part: Callable[[Total, ir.Expr], Statements]) -> Statements:
                some = [total for total in totals if part(total, number(0))]
                if not some:
                    return []
                return each(LANE, self._width, lambda n: [x for one in some for x in part(one, n)])

            before = over(lambda total, n: total.before_rows(n))
            return [*before, *rows, *counted, *over(lambda total, n: total.after_rows(n))]

        rows = None if counts is None else partial(counts.of_line, self._tile.lines)
        return _Reading(take_in, begin, around, rows)

    def _of_piece(
        self,
        counts: RowCounts | None,
        writer: Writer,
        totals: Sequence[Total],
        line: ir.Expr,
        _: ir.Expr,
    ) -> _Reading:
        """What takes in the results of a piece."""
        lines = self._combining.lines
        found = [
            [writer.allocate(self._width, dtype, f"{name}_of_piece") for name, dtype in one]
            for one in map(registers, self._own)
        ]

        def merge(lane: ir.Expr) -> Statements:
            return [
                stmt
                for total, others in zip(totals, found)
                for stmt in total.merge(lane, [tirx.BufferLoad(one, [lane]) for one in others])
            ]

        def weigh(piece: ir.Expr, place: ir.Expr) -> Statements:
            if counts is None:
                return []
            own, other = counts.of_first(line, lines, place), counts.of_part(piece)
            return [stmt for total in totals for stmt in total.weigh(own, other)]

        def take_in(piece: ir.Expr, place: ir.Expr, vector: Vector) -> Statements:
            done: Statements = weigh(piece, place)
            for one, buffer in zip([one for others in found for one in others], self.partial):
                at = self._of_pieces(buffer, piece, vector)
                done += copy_vector(self._width, (one, number(0)), at)
            return [*done, *each(LANE, self._width, merge)]

        rows = None if counts is None else partial(counts.of_line, lines)
        return _Reading(take_in, rows=rows)

    def _of_pieces(self, buffer: tirx.Var, piece: ir.Expr, vector: Vector) -> Place:
        """Where the results of a piece are."""
        return buffer, piece * as_expr(self._length) + vector.first

    def _lines(
        self, writer: Writer, tile: Tile, lane: ir.Expr, line: ir.Expr, reading: _Reading
    ) -> Lines:
        """The threads of a block that have the same columns."""
        width = number(self._width)

        def over(body: Callable[[ir.Expr, ir.Expr], Statements]) -> Statements:
            return each(LANE, self._width, lambda n: body(n, lane * width + n))

        name, memory = "line", writer.allocations
        return Lines(tile.lines, line, tile.columns, name, over, memory, reading.rows)

    def _left(
        self, writer: Writer, totals: Sequence[Total], piece: ir.Expr | None, vector: Vector
    ) -> Statements:
        """The stores of a piece's results."""
        assert piece is not None
        done: Statements = []
        for buffer, one in zip(self.partial, [one for total in totals for one in total.own]):
            at = self._of_pieces(buffer, piece, vector)
            done += copy_vector(self._width, at, (one, number(0)))
        return done

    def _finished(
        self, writer: Writer, totals: Sequence[Total], piece: ir.Expr | None, vector: Vector
    ) -> Statements:
        """The stores of the columns' results, once they are known."""
        writer.forget()
        writer.row = lambda: number(0)
        done: Statements = []
        for block, total in [found for one in totals for found in one.results]:
            writer.computed(block, total)
            if block.is_result:
                target = self.program.access(block, block.store)
                assert target is not None
                to = (block.buffer, writer.place(target, vector.first))
                done += copy_vector(self._width, to, (total, number(0)))
        for other in self.program.blocks[len(self.reductions) :]:
            done += writer.pointwise(other)(vector)
        return by_lane(done, self._width)


def _read(program: Program) -> set[tirx.Var]:
    """What columns are read from."""
    made = {block.buffer for block in program.blocks}
    return {one.buffer for _, one in program.accesses() if one.moves} - made
