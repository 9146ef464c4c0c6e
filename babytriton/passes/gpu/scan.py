"""Running sums and products along rows on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.gpu.combining import SHUFFLED, Team, adding, from_lane, start
from babytriton.passes.gpu.extents import Extent, parts, pieces, product
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    VECTOR,
    WARP,
    as_expr,
    below,
    both,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    local,
    named,
    number,
    only,
    shared,
    store,
    told,
    written_out,
)
from babytriton.passes.scans import RowScan

# Threads of a block, at most; and thread blocks that fill any GPU.
THREADS = 256
BLOCKS = 512

# Steps of a block along a row, at least, before the row is shared by more blocks.
STEPS = 4

# Rows that one thread walks along as fast.
SHORT = 32


class Scan(ScheduleRule):
    """Takes running sums and products along the last axis of tensors.

    A thread has a vector of 16 bytes of a row; warps pass what they have on by shuffles, and to
    each other in shared memory, as in Hillis and Steele, "Data parallel algorithms" (1986). A block
    goes along a row, or along a piece of a long one: then a first kernel leaves what the pieces
    have in memory, and each piece starts from what those before it have together. Where a call
    tells sizes, pieces are counted before the launch. Nothing depends on the order in which blocks
    run.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        scan = RowScan.of(func)
        if scan is None or (isinstance(scan.length, int) and scan.length < SHORT):
            return None
        writer = ScanWriter.of(scan)
        if writer.dtype not in SHUFFLED:
            return None
        return written_out(func, writer.kernels(), [writer.partial] if writer.has_pieces else [])


@dataclass
class ScanWriter:
    """Writes the kernels out.

    Attributes:
        source: what is scanned.
        result: of the scan.
        reduction: of a row: how the numbers are combined, in which dtype.
        rows: how many there are.
        length: of each.
        width: elements of a vector.
        threads: of a piece.
        pieces: of each row.
    """

    source: tirx.Var
    result: tirx.Var
    reduction: Block
    rows: Extent
    length: Extent
    width: int
    threads: int
    pieces: Extent

    @classmethod
    def of(cls, scan: RowScan) -> ScanWriter:
        """For a walk along the rows of a tensor."""
        source, result, rows, length = scan.source, scan.result, scan.rows, scan.length
        total = tirx.decl_buffer((number(1),), scan.start.ty.dtype, f"{source.name}_so_far")
        put = tirx.BufferStore(total, scan.start, [number(0)])
        reduction = Block(put, False, scan.combine, scan.start, is_result=False)
        width, threads = 1, THREADS
        if isinstance(length, int):
            width = VECTOR // max(item_bytes(str(x.ty.dtype)) for x in (source, result))
            while length % width:
                width //= 2
            threads = WARP
            while threads < min(THREADS, -(-length // width)):
                threads *= 2
        count: Extent = 1
        if not isinstance(rows, int) or rows < BLOCKS:
            most = tirx.floordiv(as_expr(length), number(threads * width * STEPS))
            wanted = tirx.floordiv(number(BLOCKS), tirx.Max(as_expr(rows), number(1)))
            count = pieces(wanted, most)
        return cls(source, result, reduction, rows, length, width, threads, count)

    def __post_init__(self) -> None:
        self.dtype = self.reduction.dtype
        self._count, first = told("pieces", self.pieces)
        self._at_once = self.threads * self.width
        in_pieces = product([self._count, self._at_once])
        self._steps, second = told("steps", parts(self.length, in_pieces))
        self._told = [*first, *second]
        self._whole = product([in_pieces, self._steps])
        self._side_by_side = 1
        if isinstance(self.rows, int) and self.threads == WARP:
            # Only a row of one warp shares nothing with the others of its block.
            self._side_by_side = min(THREADS // WARP, self.rows)
        count = as_expr(product([self.rows, self.pieces]))
        self.partial = tirx.decl_buffer((count,), self.dtype, f"{self.source.name}_of_pieces")

    @property
    def has_pieces(self) -> bool:
        """Whether rows may be shared by blocks."""
        return not isinstance(self.pieces, int) or self.pieces > 1

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
        """The number in the row of a vector's first element, and what gives it its name."""
        turn = (piece * as_expr(self._steps) + step) * number(self.threads) + lane
        return named("element", turn * number(self.width), self.length)

    def _is_there(self, first: ir.Expr) -> ir.Expr | None:
        return below(first, self.length, self._whole)

    def _loaded(self, row: ir.Expr, first: ir.Expr, values: tirx.Var) -> Statements:
        """The vector's numbers in the dtype of the sum; what changes nothing past the row's end."""
        vector = local(self.width, str(self.source.ty.dtype), f"{self.source.name}_vector")
        at = row * as_expr(self.length) + first
        zero = self.reduction.start

        def widened(n: ir.Expr) -> Statements:
            value = tirx.Cast(self.dtype, tirx.BufferLoad(vector, [n]))
            return [tirx.BufferStore(values, value, [n])]

        moved = copy_vector(self.width, (vector, number(0)), (self.source, at))
        body = [*moved, *each("lane", self.width, widened)]
        is_there = self._is_there(first)
        if is_there is not None:
            cleared = each("lane", self.width, lambda n: [tirx.BufferStore(values, zero, [n])])
            body = [*cleared, *guarded(is_there, body)]
        return [tirx.AllocBuffer(vector), *body]

    def _totals(self, ids: dict[str, ir.Expr]) -> Statements:
        """What a thread does for the total of its piece."""
        lane, allocations = ids["threadIdx.x"], list[tirx.Var]()
        row, piece, _ = self._place(ids)
        total = local(1, self.dtype, f"{self.source.name}_of_piece")
        values = local(self.width, self.dtype, f"{self.source.name}_wide")
        allocations += [total, values]
        add = adding(self.reduction, total)

        def step(n: ir.Expr) -> Statements:
            first, before = self._first(piece, n, lane)
            body = [*before, *self._loaded(row, first, values)]
            return body + each("lane", self.width, lambda i: add(tirx.BufferLoad(values, [i])))

        # No piece starts from what the last one has.
        steps = tirx.Select(
            piece + number(1) < as_expr(self._count), as_expr(self._steps), number(0)
        )
        team = Team(self.threads, lane, True, allocations)
        body = [
            start(self.reduction, total),
            *each("step", steps, step, tirx.ForKind.SERIAL),
            *team.combine((self.reduction, total)),
        ]
        put = store(self.partial, only(total), row * as_expr(self._count) + piece)
        body += guarded(tirx.EQ(lane, number(0)), [put])
        return [*map(tirx.AllocBuffer, allocations), *body]

    def _before_piece(
        self, row: ir.Expr, piece: ir.Expr, lane: ir.Expr, carry: tirx.Var, team: Team
    ) -> Statements:
        """What the pieces before a thread's have together."""
        if not self.has_pieces:
            return []
        add = adding(self.reduction, carry)

        def take(step: ir.Expr) -> Statements:
            other = step * number(self.threads) + lane
            value = tirx.BufferLoad(self.partial, [row * as_expr(self._count) + other])
            return guarded(other < piece, add(value))

        return [
            *each("step", parts(self._count, self.threads), take, tirx.ForKind.SERIAL),
            *team.combine((self.reduction, carry)),
        ]

    def _scan(self, ids: dict[str, ir.Expr]) -> Statements:
        """What a thread does for the results of its piece."""
        lane, name = ids["threadIdx.x"], self.source.name
        row, piece, is_row = self._place(ids)
        carry, before, total, other = (
            local(1, self.dtype, f"{name}_{what}") for what in ("carry", "before", "total", "other")
        )
        values = local(self.width, self.dtype, f"{name}_wide")
        done = local(self.width, str(self.result.ty.dtype), f"{self.result.name}_vector")
        allocations = [carry, before, total, other, values, done]
        combine = self.reduction.combine
        assert combine is not None
        warps = self.threads // WARP
        of_warps = shared(warps, self.dtype, f"{name}_of_warps")
        if warps > 1:
            allocations.append(of_warps)
        warp, place = tirx.floordiv(lane, number(WARP)), tirx.floormod(lane, number(WARP))

        def put(buffer: tirx.Var, value: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(buffer, value, [number(0)])

        def follow(n: ir.Expr) -> Statements:
            own = [tirx.BufferLoad(values, [i]) for i in (n, n + 1)]
            return [tirx.BufferStore(values, combine(*own), [n + 1])]

        def double(n: ir.Expr) -> Statements:
            apart = number(1) << n
            taken = put(total, combine(only(other), only(total)))
            return [
                put(other, from_lane("up", only(total), apart)),
                *guarded(place >= apart, [taken]),
            ]

        def of_warp(n: ir.Expr) -> Statements:
            taken = put(before, combine(only(before), only(other)))
            return [
                put(other, tirx.BufferLoad(of_warps, [n])),
                *guarded(n < warp, [taken]),
                put(carry, combine(only(carry), only(other))),
            ]

        def finish(n: ir.Expr) -> Statements:
            value = combine(only(before), tirx.BufferLoad(values, [n]))
            return [tirx.BufferStore(done, tirx.Cast(self.result.ty.dtype, value), [n])]

        def step(n: ir.Expr) -> Statements:
            first, named_first = self._first(piece, n, lane)
            body = [*named_first, *self._loaded(row, first, values)]
            body += each("lane", self.width - 1, follow) if self.width > 1 else []
            body += [put(total, tirx.BufferLoad(values, [number(self.width - 1)]))]
            body += each("doubling", WARP.bit_length() - 1, double)
            if warps > 1:
                left = tirx.BufferStore(of_warps, only(total), [warp])
                body += guarded(tirx.EQ(place, number(WARP - 1)), [left])
            body += [put(before, only(carry))]
            body += each("earlier", warps, of_warp) if warps > 1 else []
            taken = put(before, combine(only(before), only(other)))
            body += [put(other, from_lane("up", only(total), number(1)))]
            body += [*guarded(place >= number(1), [taken]), *each("lane", self.width, finish)]
            at = row * as_expr(self.length) + first
            stored = copy_vector(self.width, (self.result, at), (done, number(0)))
            return body + guarded(both(is_row, self._is_there(first)), stored)

        team = Team(self.threads, lane, True, allocations)
        body = [start(self.reduction, carry), *self._before_piece(row, piece, lane, carry, team)]
        body += each("step", self._steps, step, tirx.ForKind.SERIAL)
        return [*map(tirx.AllocBuffer, allocations), *body]
