"""Reductions of columns on the GPU: sums along other axes than the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.blocks import inline_cheap, is_pointwise, open_kernel
from babytriton.passes.gpu.combining import adding
from babytriton.passes.gpu.elementwise import vector_kernel
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.threads import thread_count
from babytriton.passes.gpu.writer import Statements, Vector, Writer
from babytriton.passes.gpu.writing import (
    WARP,
    as_expr,
    both,
    copy_vector,
    each,
    guarded,
    launched,
    number,
    shared,
    written_out,
)

# Rows that a thread block adds up side by side, each of its warps one.
SIDE_BY_SIDE = 8

# Thread blocks that fill any GPU; and rows that one should have, at least, before columns are cut.
BLOCKS = 512
ROWS = 4 * SIDE_BY_SIDE


class Columns(ScheduleRule):
    """Takes reductions along other axes than the last, with pointwise blocks around them.

    Gives each warp vectors of columns that lie beside each other; the warps of a block take turns
    along the rows, and combine what they have in shared memory. Where the columns alone do not
    fill a GPU, the rows are cut into pieces, whose results a second kernel combines. Pointwise
    blocks that have a value for each column are done by the kernel that ends a reduction; others
    are kernels of their own. Stands aside for what is not read along the last axis, and for sizes
    that a call tells.
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
        length: the number of columns.
        rows: what is reduced for each.
    """

    program: Program
    length: int
    rows: int

    def __post_init__(self) -> None:
        self._width = min(self.program.vector(has_tail=False), 8)
        self._tiles = -(-self.length // (WARP * self._width))
        self._pieces = max(1, min(BLOCKS // self._tiles, self.rows // ROWS))
        first = self.program.blocks[0]
        name, count = f"{first.buffer.name}_of_pieces", number(self._pieces * self.length)
        self._partial = tirx.decl_buffer((count,), first.dtype, name)

    @classmethod
    def of(cls, sch: s_tir.Schedule, group: Sequence[SBlockInfo]) -> ColumnWriter | None:
        """For a reduction and pointwise blocks after it; None if warps cannot share them out."""
        program = Program.of_columns(sch, group)
        if program is None:
            return None
        if not any(access.moves for reader, access in program.accesses() if reader == 0):
            return None
        if not isinstance(program.length, int) or not isinstance(program.row_count, int):
            return None
        return cls(program, program.length, program.row_count)

    @property
    def passed(self) -> list[tirx.Var]:
        """Memory for what one of its kernels leaves for the other."""
        return [self._partial] if self._pieces > 1 else []

    def kernels(self) -> list[tirx.Stmt]:
        """One, or one of pieces and one that combines them."""
        return [self._of_pieces(), *([self._of_results()] if self._pieces > 1 else [])]

    def _of_pieces(self) -> tirx.Stmt:
        """The kernel that goes along the rows."""
        writer, block = Writer(self.program, self._width, self._width), self.program.blocks[0]
        assert block.start is not None
        begin = block.start
        total = writer.allocate(self._width, block.dtype, f"{block.buffer.name}_vector")

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            lane, warp, piece = ids["threadIdx.x"], ids["threadIdx.y"], number(0)
            if self._pieces > 1:
                piece = ids["blockIdx.y"]
            first = (ids["blockIdx.x"] * number(WARP) + lane) * number(self._width)
            vector = Vector(first, number(0), self._width)
            fits = self.length % (WARP * self._width) == 0
            is_there = None if fits else first < number(self.length)

            def clear(n: ir.Expr) -> Statements:
                return [tirx.BufferStore(total, begin, [n])]

            def step(turn: ir.Expr) -> Statements:
                place = (turn * number(self._pieces) + piece) * number(SIDE_BY_SIDE) + warp
                writer.row = lambda: place
                whole = self.rows % (self._pieces * SIDE_BY_SIDE) == 0
                is_row = None if whole else place < number(self.rows)
                body = writer.elements(block, vector, lambda n, x: adding(block, total, n)(x))
                return guarded(both(is_there, is_row), body)

            turns = -(-self.rows // (self._pieces * SIDE_BY_SIDE))
            body = each("lane", self._width, clear)
            body += each("turn", turns, step, tirx.ForKind.SERIAL)
            body += self._across_warps(writer, block, total, lane, warp)
            if self._pieces > 1:
                to = (self._partial, piece * number(self.length) + first)
                done = copy_vector(self._width, to, (total, number(0)))
            else:
                done = self._finished(writer, block, total, vector)
            body += guarded(both(tirx.EQ(warp, number(0)), is_there), done)
            return [*map(tirx.AllocBuffer, writer.allocations), *body]

        extents = {"blockIdx.x": self._tiles, "threadIdx.y": SIDE_BY_SIDE, "threadIdx.x": WARP}
        if self._pieces > 1:
            extents["blockIdx.y"] = self._pieces
        return launched(dict(extents), thread)

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

    def _of_results(self) -> tirx.Stmt:
        """The kernel that combines the pieces of each column."""
        writer, block = Writer(self.program, self._width, self._width), self.program.blocks[0]
        assert block.start is not None
        begin = block.start
        total = writer.allocate(self._width, block.dtype, f"{block.buffer.name}_vector")
        own = writer.allocate(self._width, block.dtype, f"{block.buffer.name}_of_piece")
        threads = min(256, -(-self.length // self._width))

        def thread(ids: dict[str, ir.Expr]) -> Statements:
            first = (ids["blockIdx.x"] * number(threads) + ids["threadIdx.x"]) * number(self._width)
            vector = Vector(first, number(0), self._width)

            def take(piece: ir.Expr) -> Statements:
                place = piece * number(self.length) + first
                body = copy_vector(self._width, (own, number(0)), (self._partial, place))
                return body + each(
                    "lane",
                    self._width,
                    lambda n: adding(block, total, n)(tirx.BufferLoad(own, [n])),
                )

            body = each("lane", self._width, lambda n: [tirx.BufferStore(total, begin, [n])])
            body += each("piece", self._pieces, take, tirx.ForKind.SERIAL)
            body += self._finished(writer, block, total, vector)
            fits = self.length % (threads * self._width) == 0
            is_there = None if fits else first < as_expr(self.length)
            return [*map(tirx.AllocBuffer, writer.allocations), *guarded(is_there, body)]

        blocks = -(-self.length // (threads * self._width))
        return launched({"blockIdx.x": blocks, "threadIdx.x": threads}, thread)

    def _finished(
        self, writer: Writer, block: Block, total: tirx.Var, vector: Vector
    ) -> Statements:
        """The stores of the columns' results, once they are known."""
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
