"""Kernels that work row by row and reduce the columns of the same rows, on the GPU."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_one, open_kernel
from babytriton.passes.gpu.columns import SHARED, ColumnWriter
from babytriton.passes.gpu.combining import Lines, Part, has_shuffles, start
from babytriton.passes.gpu.extents import Extent, parts, pieces, product
from babytriton.passes.gpu.program import Program
from babytriton.passes.gpu.registers import Vector
from babytriton.passes.gpu.rowwise import (
    BLOCK,
    MOST_THREADS,
    Layout,
    Portion,
    RowWriter,
    has_registers,
)
from babytriton.passes.gpu.sweeps import Sweeps, is_of_row
from babytriton.passes.gpu.threads import most_threads
from babytriton.passes.gpu.tiles import Tile
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    LANE,
    WARP,
    as_expr,
    below,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    number,
    told,
    written_out,
)
from babytriton.passes.rows_and_columns import rows_and_columns

# Threads that fill any GPU, and blocks of them at most; and rows that each goes through, at least,
# where there are more than a few blocks.
THREADS, BLOCKS, FEW = 1 << 17, 1024, 64
ROWS = 8

# Blocks whose results a warp combines, at least.
PIECES = 4


class RowsAndColumns(ScheduleRule):
    """Takes what goes along rows and reduces their columns, such as the way back of a norm.

    A thread block goes through many rows, as those of `Rowwise` do through one, and keeps what it
    has of each column in registers from row to row; a second kernel combines what all blocks have.
    So each row is read once. Where nothing is reduced along rows, a block has a strip of them.
    Stands aside where registers do not hold a row with its columns, and where nothing but columns
    is needed.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos, repeat_calls=True)
        work = rows_and_columns([sch.get(info.block_rv) for info in infos])
        if work is None or work.before:
            return None
        reductions = [infos[n] for n in work.columns]
        program = Program.of(sch, [infos[n] for n in work.on_rows], work.rows, columns=reductions)
        columns = Program.of_columns(sch, [infos[n] for n in sorted((*work.columns, *work.after))])
        if program is None or columns is None or columns.dependent:
            return None
        if not _has_results_of_rows(program):
            return None
        shuffles = has_shuffles(target)
        most = min(MOST_THREADS, most_threads(target))
        is_in_strips = not any(map(is_of_row, program.blocks))
        if is_in_strips:
            layout = strips(program, most)
        else:
            layout = Layout.of(program, most, shuffles, Portion.of_many(program))
        if layout is None or not layout.is_kept or not _fits(program, layout):
            return None
        warps = min(most // WARP, _most_warps(columns))
        if warps == 0:
            return None
        writer = RowAndColumnWriter(program, columns, layout, shuffles, warps)
        return written_out(func, writer.kernels(), writer.passed)


def _most_warps(columns: Program) -> int:
    """How many warps of a thread block may share what they have of columns, a thread each one."""
    return SHARED // (WARP * sum(item_bytes(block.dtype) for block in columns.reductions))


def _has_results_of_rows(program: Program) -> bool:
    return any(block.is_result and not block.is_of_columns for block in program.blocks)


def strips(program: Program, most: int) -> Layout | None:
    """How rows are shared out of which each element is by itself: a warp of a block has a strip.

    None for those of a length that a call tells.
    """
    if not isinstance(program.length, int):
        return None
    width = program.vector(has_tail=False)
    threads = 1
    while threads < min(parts(program.length, width), WARP):
        threads *= 2
    return Layout(threads, min(BLOCK, most) // threads, width, 1, True)


def _fits(program: Program, layout: Layout) -> bool:
    """Whether registers hold a row with its columns, and a block's memory what its lines share."""
    assert isinstance(layout.steps, int)
    elements = layout.steps * layout.width
    has_room = has_registers(Sweeps.of(program), layout.threads, elements)
    own = sum(item_bytes(block.dtype) for block in program.blocks if block.is_of_columns)
    lines = layout.rows * layout.threads * elements * own
    return has_room and (layout.rows == 1 or lines <= SHARED)


class RowAndColumnWriter(RowWriter):
    """Writes the kernels out.

    Args:
        program: what is computed of rows, and what columns are reduced to.
        columns: the program of what columns are reduced to, and of what goes on with that.
        layout: how rows are shared out.
        shuffles: whether threads pass each other values without memory.
        warps: of a thread block, at most.
    """

    def __init__(
        self, program: Program, columns: Program, layout: Layout, shuffles: bool, warps: int
    ) -> None:
        super().__init__(program, layout, shuffles)
        assert isinstance(layout.steps, int)
        self._size = layout.threads * layout.steps * layout.width
        self._strips = parts(program.length, self._size)
        assert isinstance(self._strips, int)
        blocks = min(THREADS // (layout.threads * layout.rows * self._strips), BLOCKS)
        few = pieces(FEW, parts(program.row_count, layout.rows))
        enough = tirx.Max(as_expr(parts(program.row_count, layout.rows * ROWS)), as_expr(few))
        count = pieces(blocks, enough)
        self._pieces, self._before = told("pieces", count)
        busy = max((count if isinstance(count, int) else blocks) // PIECES, 1)
        warps = 1 << (min(warps, busy).bit_length() - 1)  # a power of two
        # Single columns, since all columns together do not fill a GPU.
        tile, own = Tile(1, WARP, warps), [(block,) for block in columns.reductions]
        self._columns = ColumnWriter(columns, own, count, tile, tile)

    @property
    def passed(self) -> list[tirx.Var]:
        """Memory for what one kernel leaves for the other."""
        return self._columns.partial

    def kernels(self) -> Statements:
        """One of rows, and one that combines what its blocks have of the columns."""
        extents: dict[str, Extent] = {"blockIdx.x": self._pieces}
        if not is_one(self._strips):
            extents = {"blockIdx.x": self._strips, "blockIdx.y": self._pieces}
        kernel = launched({**extents, **self.threads()}, self._of_piece)
        return [*self._before, kernel, *self._columns.combining(self._pieces)]

    def _of_piece(self, ids: dict[str, ir.Expr]) -> Statements:
        """What a thread does, of all rows of its block."""
        layout, line = self.layout, self.take_place(ids)
        self._strip, piece = ids["blockIdx.x"], ids.get("blockIdx.y", ids["blockIdx.x"])
        count, rows = self.program.row_count, number(layout.rows)
        step = product([self._pieces, layout.rows])

        def own(turn: ir.Expr) -> ir.Expr:
            first = turn * as_expr(self._pieces) + piece
            return first if layout.rows == 1 else first * rows + line

        def turn(n: ir.Expr) -> Statements:
            return self.of_row(lambda: own(n), step)

        turns = parts(count, step)
        if below(number(0), count, step) is not None:
            # It is not negative, which TVM does not know of sizes that a call tells.
            rest = as_expr(count) + as_expr(step) - 1 - piece * rows
            turns = tirx.truncdiv(rest, as_expr(step))
        through = each("turn", turns, turn, tirx.ForKind.SERIAL)
        own_of = {block.buffer: total for block, total in self.writer.columns}
        totals = [(block, own_of[block.buffer]) for block in self._columns.reductions]

        def clear(n: ir.Expr) -> Statements:
            return [start(block, total, n) for block, total in totals]

        def left(vector: Vector) -> Statements:
            done: Statements = []
            for buffer, (_, total) in zip(self._columns.partial, totals):
                at = piece * as_expr(self.program.length) + vector.first
                done += copy_vector(vector.width, (buffer, at), (total, vector.kept))
            return done

        body = [*each("column", self.writer.count, clear), *through]
        found = [Part.of(*total) for total in totals]
        put, take = self._lines(line).combine(found) if layout.rows > 1 else ([], [])
        is_first = tirx.EQ(line, number(0)) if layout.rows > 1 else None
        body += [*put, *guarded(is_first, [*take, *self.steps(left)])]
        return [*map(tirx.AllocBuffer, self.writer.allocations), *body]

    def first_of_block(self) -> ir.Expr:
        return number(0) if is_one(self._strips) else self._strip * number(self._size)

    def _lines(self, line: ir.Expr) -> Lines:
        """The threads of a block that have the same columns."""
        layout = self.layout
        width, threads = number(layout.width), number(layout.threads)

        def over(body: Callable[[ir.Expr, ir.Expr], Statements]) -> Statements:
            def of_step(step: ir.Expr) -> Statements:
                first = (step * threads + self.lane) * width
                return each(LANE, layout.width, lambda n: body(step * width + n, first + n))

            return each("step", layout.steps, of_step)

        return Lines(layout.rows, line, self._size, "line", over, self.writer.allocations)
