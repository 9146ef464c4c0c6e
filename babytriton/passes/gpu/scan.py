"""Running sums, products and extremes along rows on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import (
    in_loops,
    inline_cheap,
    is_one,
    only_block,
    open_kernel,
    plain_blocks,
)
from babytriton.passes.gpu.combining import SHUFFLED, Team
from babytriton.passes.gpu.extents import Extent, parts, pieces, product
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.running import Held, Running
from babytriton.passes.gpu.writer import Statements, Writer
from babytriton.passes.gpu.writing import (
    LANE,
    WARP,
    as_expr,
    below,
    by_lane,
    each,
    guarded,
    item_bytes,
    launched,
    named,
    number,
    told,
    written_out,
)
from babytriton.passes.operators import Operator
from babytriton.passes.rows import is_on_points
from babytriton.passes.scans import SCANNED, RowScan, as_points
from babytriton.passes.statements import sequence

# Threads of a block, at most, and where each has no more vectors of a row than it has at once; and
# thread blocks that fill any GPU.
THREADS, ENOUGH = 256, 64
BLOCKS = 512

# Vectors of a thread along a row, at least, before the row is shared by more blocks.
STEPS = 4

# Vectors that a thread has at once, at most, numbers in them, and words of registers for these:
# their loads are on the way together. There are no more totals of warps than a warp has threads,
# which add these up.
TURNS, HELD, WORDS = 4, 16, 32

# Bytes of a word.
WORD = 4

# Rows that one thread walks along as fast.
SHORT = 32


class Scan(ScheduleRule):
    """Takes a running sum, product or extreme along the last axis, with pointwise blocks around it.

    A thread has a few vectors of 16 bytes of a row; warps pass what they have on by shuffles, and
    to each other in shared memory, as in Hillis and Steele, "Data parallel algorithms" (1986). A
    block goes along a row, or along a piece of a long one: then a first kernel leaves what the
    pieces have in memory, and each piece starts from what those before it have together. Where a
    call tells sizes, pieces are counted before the launch. Nothing depends on the order in which
    blocks run. What is summed up is computed as it is loaded, and what comes after as it is stored.

    What is combined may have several parts: a maximum has the place of it beside it where that is
    read, and a sum of exponentials the largest of them.

    Sums of float32 are in float64 only from step to step, and from piece to piece: those of a step
    are of few numbers each, and GPUs may be slow with float64.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        blocks = plain_blocks(func)
        scans = [scan for block in blocks if (scan := RowScan.of(block)) is not None]
        if len(scans) != 1 or not is_on_points(as_points(blocks)):
            return None
        scan = scans[0]
        if isinstance(scan.length, int) and scan.length < SHORT:
            return None
        carried = own = scan.operator()
        if scan.kind in ("add", "logaddexp") and str(scan.source.ty.dtype) == "float32":
            own = scan.operator("float32")
        kernel = open_kernel(_with_points(func, scan, own))
        if kernel is None:
            return None
        sch, infos = kernel
        scanned = [f"{SCANNED}{n}" for n in range(len(own.parts))]
        infos = inline_cheap(sch, infos, keep=[info for info in infos if info.name in scanned])
        place = next(n for n, info in enumerate(infos) if info.name == scanned[0])
        *rows, _ = [extent for extent in infos[place].dom() if not is_one(extent)]
        program = Program.of(sch, infos, rows)
        if program is None or not {*own.dtypes, *carried.dtypes} <= set(SHUFFLED):
            return None
        if not all(block.has_elements for block in program.blocks):
            return None
        writer = ScanWriter.of(scan, program, place, own, carried)
        passed = list(writer.partial.buffers) if writer.has_pieces else []
        return written_out(sch.mod["main"], writer.kernels(), passed)


def _with_points(func: tirx.PrimFunc, scan: RowScan, own: Operator) -> tirx.PrimFunc:
    """The kernel with what a running sum does to points in the place of that."""
    points = scan.points(own)
    between = [block.writes[0].source for block in points[: len(own.parts)]]
    root = func.body.block
    body = root.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    made: list[tirx.Stmt] = []
    for stmt in statements:
        block = only_block(stmt)
        is_scan = block is not None and block.same_as(scan.block)
        made += map(in_loops, points) if is_scan else [stmt]
    buffers = [*root.alloc_buffers, *between]
    block = s_tir.SBlock([], [], [], root.name_hint, sequence(made), None, buffers)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


@dataclass
class ScanWriter:
    """Writes the kernels out.

    Attributes:
        program: what is computed, where that of points stands for the scan.
        place: of the first of the blocks that are what is scanned: one for each part of it.
        name: of what is scanned.
        operator: how the numbers of a step are combined.
        carried: the same, in the dtypes of what goes from step to step.
        width: elements of a vector.
        turns: vectors that a thread has at once: a block goes along them one after the other.
        threads: of a piece.
        pieces: of each row.
        backwards: whether a row begins with its last element.
    """

    program: Program
    place: int
    name: str
    operator: Operator
    carried: Operator
    width: int
    turns: int
    threads: int
    pieces: Extent
    backwards: bool

    @classmethod
    def of(
        cls, scan: RowScan, program: Program, place: int, own: Operator, carried: Operator
    ) -> ScanWriter:
        """For a walk along the rows of a tensor.

        Args:
            scan: that.
            program: with its points.
            place: of the first of the blocks that are what is scanned.
            own: how the numbers of a step are combined.
            carried: the same, in the dtypes of what goes from step to step.
        """
        rows, length = program.row_count, program.length
        # Rows of a length that a call tells may be short.
        width = program.vector(has_tail=False) if isinstance(length, int) else 1
        size = sum(map(item_bytes, own.dtypes))
        # What several parts become, some of them of eight bytes, takes as many registers again.
        held = min(HELD, WORDS * WORD // (size if size <= 2 * WORD else 2 * size))
        threads, turns = THREADS // 2, max(1, min(TURNS, held // width))
        if isinstance(length, int):
            across, threads = -(-length // width), WARP
            while threads < min(ENOUGH if across <= ENOUGH * turns else THREADS, across):
                threads *= 2
        count: Extent = 1
        if not isinstance(rows, int) or rows < BLOCKS:
            most = tirx.floordiv(as_expr(length), number(threads * width * STEPS))
            wanted = tirx.floordiv(number(BLOCKS), tirx.Max(as_expr(rows), number(1)))
            count = pieces(wanted, most)
        if isinstance(length, int):
            known = count if isinstance(count, int) else 1
            vectors = -(-length // (threads * width * known))
            # As many in each step, so that the last one has few that are past the row's end.
            turns = -(-vectors // -(-vectors // turns))
        backwards, name = scan.backwards, str(scan.source.name)
        return cls(program, place, name, own, carried, width, turns, threads, count, backwards)

    def __post_init__(self) -> None:
        self.rows, self.length = self.program.row_count, self.program.length
        self._after = self.place + len(self.operator.parts)
        self._count, first = told("pieces", self.pieces)
        self._at_once = self.threads * self.width * self.turns
        in_pieces = product([self._count, self._at_once])
        self._steps, second = told("steps", parts(self.length, in_pieces))
        self._told = [*first, *second]
        self._whole = product([in_pieces, self._steps])
        self._side_by_side = 1
        if isinstance(self.rows, int) and self.threads == WARP:
            # Only a row of one warp shares nothing with the others of its block.
            self._side_by_side = min(THREADS // WARP, self.rows)
        count = as_expr(product([self.rows, self.pieces]))
        self.partial = Held.of(self.carried, _memory, count, self.name, "_of_pieces")

    @property
    def has_pieces(self) -> bool:
        """Whether rows may be shared by blocks."""
        return not isinstance(self.pieces, int) or self.pieces > 1

    @property
    def _has_steps(self) -> bool:
        return not isinstance(self._steps, int) or self._steps > 1

    def kernels(self) -> list[tirx.Stmt]:
        """One, or one for the pieces' totals and one that starts from these."""
        scan = launched(dict(self._extents()), self._scan)
        if not self.has_pieces:
            return [*self._told, scan]
        return [*self._told, launched(dict(self._extents()), self._totals), scan]

    def _extents(self) -> dict[str, Extent]:
        extents: dict[str, Extent] = {"blockIdx.x": parts(self.rows, self._side_by_side)}
        if self.has_pieces:
            extents["blockIdx.y"] = self._count
        if self._side_by_side > 1:
            extents["threadIdx.y"] = self._side_by_side
        return {**extents, "threadIdx.x": self.threads}

    def _place(self, ids: dict[str, ir.Expr]) -> tuple[ir.Expr, ir.Expr, ir.Expr | None]:
        """A thread's row and piece, and whether it has a row."""
        if self.has_pieces:
            return ids["blockIdx.x"], ids["blockIdx.y"], None
        if self._side_by_side == 1:
            return ids["blockIdx.x"], number(0), None
        row = ids["blockIdx.x"] * number(self._side_by_side) + ids["threadIdx.y"]
        is_row = below(row, self.rows, self._side_by_side)
        if is_row is None:
            return row, number(0), None
        # Threads without a row work on the last one: shuffles are of whole warps.
        return tirx.Min(row, as_expr(self.rows) - number(1)), number(0), is_row

    def _first(self, piece: ir.Expr, step: ir.Expr, lane: ir.Expr) -> tuple[ir.Expr, Statements]:
        """The number in the row of a thread's first element, and what gives it its name."""
        done = (piece * as_expr(self._steps) + step) * number(self._at_once)
        place = done + lane * number(self.width)
        if self.backwards:
            place = as_expr(self.length) - number(self.width) - place
        return named("element", place, self.length)

    def _vector(self, first: ir.Expr, turn: ir.Expr) -> Vector:
        """One of the vectors that a thread has, the first of which begins with an element."""
        apart = turn * number(self.threads * self.width)
        first = first - apart if self.backwards else first + apart
        return Vector(first, turn * number(self.width), self.width)

    def _is_there(self, first: ir.Expr) -> ir.Expr | None:
        is_below = below(first, self.length, self._whole)
        return number(0) <= first if is_below is not None and self.backwards else is_below

    def _lane(self, n: ir.Expr | int) -> ir.Expr:
        """The place in a vector of the number that the walk takes as its n-th."""
        return number(self.width - 1) - n if self.backwards else as_expr(n)

    def _writer(self, program: Program, row: ir.Expr, is_row: ir.Expr | None = None) -> Writer:
        writer = Writer(program, self.width, self.width * self.turns)
        writer.row = lambda: row
        writer.is_row = is_row
        return writer

    def _loaded(
        self, writer: Writer, vector: Vector, before_it: Sequence[Callable[[Vector], Statements]]
    ) -> Statements:
        """The numbers of a vector in the dtype of the sum; what changes nothing past the row's end.

        Args:
            writer: of the thread.
            vector: that.
            before_it: what computes the blocks up to that of these numbers.
        """
        body = by_lane([stmt for part in before_it for stmt in part(vector)], self.width)
        is_there = self._is_there(vector.first)
        if is_there is None:
            return body
        values = self._values(writer)

        def clear(n: ir.Expr) -> Statements:
            return values.begin(vector.kept + n)

        return [*each("lane", self.width, clear), *guarded(is_there, body)]

    def _taken(
        self,
        writer: Writer,
        place: tuple[ir.Expr, ir.Expr, ir.Expr],
        before_it: Sequence[Callable[[Vector], Statements]],
    ) -> tuple[ir.Expr, Statements]:
        """The number of a thread's first element in a step, and what loads all of the step.

        Args:
            writer: of the thread.
            place: the piece, the step and the thread.
            before_it: as of :meth:`_loaded`.
        """
        first, body = self._first(*place)

        def of_turn(turn: ir.Expr) -> Statements:
            return self._loaded(writer, self._vector(first, turn), before_it)

        return first, [*body, *each("turn", self.turns, of_turn)]

    def _computed(self, writer: Writer) -> list[Callable[[Vector], Statements]]:
        """What computes the blocks, of which those that are scanned stay in registers."""
        scanned = range(self.place, self._after)
        blocks = enumerate(writer.program.blocks)
        return [writer.pointwise(block, n in scanned) for n, block in blocks]

    def _values(self, writer: Writer) -> Held:
        """Where the numbers are that are scanned."""
        scanned = writer.program.blocks[self.place : self._after]
        return Held(self.operator, tuple(map(writer.value, scanned)))

    def _registers(self, writer: Writer, operator: Operator, ending: str) -> Held:
        """Those of a thread for what is combined once."""
        return Held.of(operator, writer.allocate, 1, self.name, ending)

    def _totals(self, ids: dict[str, ir.Expr]) -> Statements:
        """What a thread does for the total of its piece."""
        lane = ids["threadIdx.x"]
        row, piece, _ = self._place(ids)
        own = [replace(block, is_result=False) for block in self.program.blocks]
        writer = self._writer(replace(self.program, blocks=tuple(own)), row)
        loaded = writer.load_of_rows()
        before_it = self._computed(writer)[: self._after]
        values = self._values(writer)
        total = self._registers(writer, self.carried, "_of_piece")
        some = self._registers(writer, self.operator, "_of_step")
        count = self.width * self.turns

        def take(n: ir.Expr) -> Statements:
            return some.put(self.operator.join(some.at(), values.at(n + 1)))

        def step(n: ir.Expr) -> Statements:
            _, body = self._taken(writer, (piece, n, lane), before_it)
            body += some.put(values.at(number(0)))
            body += each(LANE, count - 1, take) if count > 1 else []
            return body + total.put(self.carried.join(total.at(), self.carried.cast(some.at())))

        # No piece starts from what the last one has.
        steps = tirx.Select(
            piece + number(1) < as_expr(self._count), as_expr(self._steps), number(0)
        )
        body = [
            *loaded,
            *total.begin(),
            *each("step", steps, step, tirx.ForKind.SERIAL),
            *self._of_all(writer, lane, total),
        ]
        put = self.partial.put(total.at(), row * as_expr(self._count) + piece)
        body += guarded(tirx.EQ(lane, number(0)), put)
        return [*map(tirx.AllocBuffer, writer.allocations), *body]

    def _of_all(self, writer: Writer, lane: ir.Expr, total: Held) -> Statements:
        """What gives each thread what all threads of a piece have together."""
        team = Team(self.threads, lane, True, writer.allocations)
        return team.merge(total.part(self.name, self._registers(writer, self.carried, "_other")))

    def _before_piece(
        self, writer: Writer, place: tuple[ir.Expr, ir.Expr, ir.Expr], carry: Held
    ) -> Statements:
        """What the pieces before a thread's have together.

        Args:
            writer: of the thread.
            place: the row, the piece and the thread.
            carry: where to have it.
        """
        if not self.has_pieces:
            return []
        row, piece, lane = place
        part = carry.part(self.name, self._registers(writer, self.carried, "_other"))

        def take(step: ir.Expr) -> Statements:
            other = step * number(self.threads) + lane
            given = self.partial.at(row * as_expr(self._count) + other)
            return guarded(other < piece, part.take(given))

        return [
            *each("step", parts(self._count, self.threads), take, tirx.ForKind.SERIAL),
            *self._of_all(writer, lane, carry),
        ]

    def _scan(self, ids: dict[str, ir.Expr]) -> Statements:
        """What a thread does for the results of its piece."""
        lane = ids["threadIdx.x"]
        row, piece, is_row = self._place(ids)
        writer = self._writer(self.program, row, is_row)
        loaded = writer.load_of_rows()
        blocks = self._computed(writer)
        before_it, after_it = blocks[: self._after], blocks[self._after :]
        carries = self.has_pieces or self._has_steps
        carry = self._registers(writer, self.carried, "_carry") if carries else None
        warps = self.threads // WARP
        running = Running(writer, self.name, self.operator, lane, warps, self.turns)
        values = self._values(writer)

        def step(n: ir.Expr) -> Statements:
            first, body = self._taken(writer, (piece, n, lane), before_it)
            body += each("turn", self.turns, lambda turn: self._own(writer, running, turn))
            body += running.of_all()
            body += each("turn", self.turns, lambda turn: finish(first, turn))
            if carry is not None and self._has_steps:
                whole, given = running.whole()
                total = self.carried.join(carry.at(), self.carried.cast(whole))
                body += [*given, *carry.put(total)]
            return body

        def finish(first: ir.Expr, turn: ir.Expr) -> Statements:
            before, body = running.before, running.start(turn)
            if carry is not None:
                whole = self.carried.join(carry.at(), self.carried.cast(before.at()))
                body += before.put(self.operator.cast(whole))
            vector = self._vector(first, turn)

            def one(n: ir.Expr) -> Statements:
                at = vector.kept + n
                return values.put(self.operator.join(before.at(), values.at(at)), at)

            done = each(LANE, self.width, one)
            done += [stmt for part in after_it for stmt in part(vector)]
            return body + guarded(self._is_there(vector.first), by_lane(done, self.width))

        body = list(loaded)
        if carry is not None:
            body += carry.begin()
            body += self._before_piece(writer, (row, piece, lane), carry)
        body += each("step", self._steps, step, tirx.ForKind.SERIAL)
        return [*map(tirx.AllocBuffer, writer.allocations), *body]

    def _own(self, writer: Writer, running: Running, turn: ir.Expr) -> Statements:
        """A running total of a thread's vector, which its warp then has."""
        first, values = turn * number(self.width), self._values(writer)

        def follow(n: ir.Expr) -> Statements:
            before, at = (first + self._lane(i) for i in (n, n + 1))
            return values.put(self.operator.join(values.at(before), values.at(at)), at)

        body = each("lane", self.width - 1, follow) if self.width > 1 else []
        return body + running.of_thread(turn, values.at(first + self._lane(self.width - 1)))


def _memory(count: ir.Expr, dtype: str, name: str) -> tirx.Var:
    """What one kernel leaves for another."""
    return tirx.decl_buffer((count,), dtype, name)
