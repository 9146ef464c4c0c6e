"""Reductions of columns on the GPU: sums along other axes than the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_one, is_pointwise, open_kernel
from babytriton.passes.gpu.combining import adding
from babytriton.passes.gpu.elementwise import vector_kernel
from babytriton.passes.gpu.extents import Extent, parts, pieces, product
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.threads import thread_count
from babytriton.passes.gpu.writer import Statements, Vector, Writer
from babytriton.passes.gpu.writing import (
    WARP,
    Place,
    as_expr,
    below,
    both,
    copy_vector,
    each,
    guarded,
    launched,
    named,
    number,
    shared,
    told,
    written_out,
)

# Rows that a thread block adds up side by side, each of its warps one.
SIDE_BY_SIDE = 8

# Thread blocks that fill any GPU; and rows that one should have, at least, before columns are cut.
BLOCKS = 512
ROWS = 4 * SIDE_BY_SIDE

# What takes a row into a vector of totals; and what is done with these, of a piece if there are
# several.
_Read: TypeAlias = Callable[[Writer, tirx.Var, ir.Expr, Vector], Statements]
_Finish: TypeAlias = Callable[[Writer, tirx.Var, ir.Expr | None, Vector], Statements]


class Columns(ScheduleRule):
    """Takes reductions along other axes than the last, with pointwise blocks around them.

    Gives each warp vectors of columns that lie beside each other; the warps of a block take turns
    along the rows, and combine what they have in shared memory. Where the columns alone do not
    fill a GPU, the rows are cut into pieces, whose results a second kernel combines; of sizes that
    a call tells, into as many as it computes then. Pointwise blocks that have a value for each
    column are done by the kernel that ends a reduction; others are kernels of their own. Stands
    aside for what is not read along the last axis.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        infos = inline_cheap(sch, infos, repeat_calls=True)
        groups = _groups(sch, infos)
        if not any(group[0].is_reduction() for group in groups):
            return None
        kernels: list[tirx.Stmt] = []
        passed: list[tirx.Var] = []
        for group in groups:
            if not group[0].is_reduction():
                nest = Program.of(sch, group, []) if is_pointwise(sch, group[0]) else None
                if nest is None:
                    return None
                kernels.append(vector_kernel(nest, thread_count(target)))
                continue
            writer = ColumnWriter.of(sch, group)
            if writer is None:
                return None
            kernels += writer.kernels()
            passed += writer.passed
        return written_out(sch.mod["main"], kernels, passed)


def _groups(sch: s_tir.Schedule, infos: Sequence[SBlockInfo]) -> list[list[SBlockInfo]]:
    """The blocks, those together that one kernel ends with: a reduction and what its columns have.

    A function of blocks in order stays in order.
    """
    groups: list[list[SBlockInfo]] = []
    for info in infos:
        last = groups[-1] if groups else []
        if last and last[0].is_reduction() and Program.of_columns(sch, [*last, info]) is not None:
            last.append(info)
        else:
            groups.append([info])
    return groups


@dataclass
class ColumnWriter:
    """Writes the kernels out.

    Attributes:
        program: what is computed.
    """

    program: Program

    def __post_init__(self) -> None:
        self._width = min(self.program.vector(has_tail=False), 8)
        self._length = self.program.length
        self._pieces = _pieces(self._length, self._width, self.program.row_count)
        first = self.program.blocks[0]
        name, count = f"{first.buffer.name}_of_pieces", product([self._pieces, self._length])
        self._partial = tirx.decl_buffer((as_expr(count),), first.dtype, name)

    @classmethod
    def of(cls, sch: s_tir.Schedule, group: Sequence[SBlockInfo]) -> ColumnWriter | None:
        """For a reduction and pointwise blocks after it; None if warps cannot share them out."""
        program = Program.of_columns(sch, group)
        if program is None:
            return None
        if not any(access.moves for reader, access in program.accesses() if reader == 0):
            return None
        return cls(program)

    @property
    def passed(self) -> list[tirx.Var]:
        """Memory for what one of its kernels leaves for the other."""
        return [] if is_one(self._pieces) else [self._partial]

    def kernels(self) -> list[tirx.Stmt]:
        """One, or one of pieces and one that combines them."""
        rows = self.program.row_count
        if is_one(self._pieces):
            return self._kernel(rows, 1, self._of_row, self._finished)
        count, before = told("pieces", self._pieces)
        return [
            *before,
            *self._kernel(rows, count, self._of_row, self._left),
            *self._kernel(count, 1, self._of_piece, self._finished),
        ]

    def _kernel(self, rows: Extent, count: Extent, read: _Read, finish: _Finish) -> Statements:
        """A kernel whose warps take turns along rows, after what it is told.

        Args:
            rows: how many there are.
            count: of the pieces that they are cut into.
            read: what takes a row in.
            finish: what is done with all that a piece has.
        """
        writer, block = Writer(self.program, self._width, self._width), self.program.blocks[0]
        assert block.start is not None
        begin = block.start
        total = writer.allocate(self._width, block.dtype, f"{block.buffer.name}_vector")
        at_once = product([count, SIDE_BY_SIDE])
        turns, before = told("turns", parts(rows, at_once))

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            lane, warp, piece = ids["threadIdx.x"], ids["threadIdx.y"], ids.get("blockIdx.y")
            first = (ids["blockIdx.x"] * number(WARP) + lane) * number(self._width)
            first, body = named("column", first, self._length)
            vector = Vector(first, number(0), self._width)
            is_there = below(first, self._length, WARP * self._width)

            def clear(n: ir.Expr) -> Statements:
                return [tirx.BufferStore(total, begin, [n])]

            def step(turn: ir.Expr) -> Statements:
                turn = turn if piece is None else turn * as_expr(count) + piece
                row, before = named("row", turn * number(SIDE_BY_SIDE) + warp, rows)
                is_row = below(row, rows, at_once)
                taken = read(writer, total, row, vector)
                return [*before, *guarded(both(is_there, is_row), taken)]

            body += each("lane", self._width, clear)
            body += each("turn", turns, step, tirx.ForKind.SERIAL)
            body += self._across_warps(writer, block, total, lane, warp)
            done = finish(writer, total, piece, vector)
            body += guarded(both(tirx.EQ(warp, number(0)), is_there), done)
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        extents = {"blockIdx.x": parts(self._length, WARP * self._width)}
        if not is_one(count):
            extents["blockIdx.y"] = count
        extents |= {"threadIdx.y": SIDE_BY_SIDE, "threadIdx.x": WARP}
        return [*before, launched(extents, thread)]

    def _of_row(self, writer: Writer, total: tirx.Var, row: ir.Expr, vector: Vector) -> Statements:
        """What takes in what is reduced."""
        block = self.program.blocks[0]
        writer.row = lambda: row
        return writer.elements(block, vector, lambda n, x: adding(block, total, n)(x))

    def _of_piece(
        self, writer: Writer, total: tirx.Var, piece: ir.Expr, vector: Vector
    ) -> Statements:
        """What takes in the results of a piece."""
        block = self.program.blocks[0]
        own = writer.allocate(self._width, block.dtype, f"{block.buffer.name}_of_piece")
        read = copy_vector(self._width, (own, number(0)), self._of_pieces(piece, vector))

        def take(n: ir.Expr) -> Statements:
            return adding(block, total, n)(tirx.BufferLoad(own, [n]))

        return [*read, *each("lane", self._width, take)]

    def _of_pieces(self, piece: ir.Expr, vector: Vector) -> Place:
        """Where the results of a piece are."""
        return self._partial, piece * as_expr(self._length) + vector.first

    def _across_warps(
        self, writer: Writer, block: Block, total: tirx.Var, lane: ir.Expr, warp: ir.Expr
    ) -> Statements:
        """Give the first warp what all of them have together."""
        size = WARP * self._width
        warps = shared(SIDE_BY_SIDE * size, block.dtype, f"{block.buffer.name}_of_warps")
        writer.allocations.append(warps)

        def at(of: ir.Expr, n: ir.Expr) -> ir.Expr:
            return of * number(size) + lane * number(self._width) + n

        def put(n: ir.Expr) -> Statements:
            return [tirx.BufferStore(warps, tirx.BufferLoad(total, [n]), [at(warp, n)])]

        def take(other: ir.Expr) -> Statements:
            def one(n: ir.Expr) -> Statements:
                return adding(block, total, n)(tirx.BufferLoad(warps, [at(other + 1, n)]))

            return each("lane", self._width, one)

        others = each("warp", SIDE_BY_SIDE - 1, take)
        is_first = tirx.EQ(warp, number(0))
        return [*each("lane", self._width, put), *guarded(is_first, others)]

    def _left(
        self, writer: Writer, total: tirx.Var, piece: ir.Expr | None, vector: Vector
    ) -> Statements:
        """The stores of a piece's results."""
        assert piece is not None
        return copy_vector(self._width, self._of_pieces(piece, vector), (total, number(0)))

    def _finished(
        self, writer: Writer, total: tirx.Var, piece: ir.Expr | None, vector: Vector
    ) -> Statements:
        """The stores of the columns' results, once they are known."""
        block = self.program.blocks[0]
        writer.row = lambda: number(0)
        writer.computed(block, total)
        done: Statements = []
        if block.is_result:
            target = self.program.access(block, block.store)
            assert target is not None
            to = (block.buffer, writer.place(target, vector.first))
            done += copy_vector(self._width, to, (total, number(0)))
        for other in self.program.blocks[1:]:
            done += writer.pointwise(other)(vector)
        return done


def _pieces(length: Extent, width: int, rows: Extent) -> Extent:
    """How many pieces rows are cut into, for the thread blocks of all columns to fill a GPU."""
    tile = number(WARP * width)
    wanted = tirx.floordiv(number(BLOCKS) * tile, tirx.Max(as_expr(length), tile))
    return pieces(wanted, tirx.floordiv(as_expr(rows), number(ROWS)))
