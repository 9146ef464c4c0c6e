"""Running sums and products along rows on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.gpu.combining import SHUFFLED, Team, adding, from_lane, start
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    VECTOR,
    WARP,
    both,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    local,
    number,
    only,
    shared,
    store,
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
    """Takes running sums and products along the last axis of tensors whose sizes are known.

    A thread has a vector of 16 bytes of a row; warps pass what they have on by shuffles, and to
    each other in shared memory, as in Hillis and Steele, "Data parallel algorithms" (1986). A block
    goes along a row, or along a piece of a long one: then a first kernel leaves what the pieces
    have in memory, and each piece starts from what those before it have together. Nothing depends
    on the order in which blocks run.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        scan = RowScan.of(func)
        if scan is None or scan.length < SHORT:
            return None
        writer = ScanWriter.of(scan)
        if writer.dtype not in SHUFFLED:
            return None
        return written_out(func, writer.kernels(), [writer.partial] if writer.pieces > 1 else [])


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
    rows: int
    length: int
    width: int
    threads: int
    pieces: int

    @classmethod
    def of(cls, scan: RowScan) -> ScanWriter:
        """For a walk along the rows of a tensor."""
        source, result, rows, length = scan.source, scan.result, scan.rows, scan.length
        total = tirx.decl_buffer((number(1),), scan.start.ty.dtype, f"{source.name}_so_far")
        put = tirx.BufferStore(total, scan.start, [number(0)])
        reduction = Block(put, False, scan.combine, scan.start, is_result=False)
        width = VECTOR // max(item_bytes(str(x.ty.dtype)) for x in (source, result))
        while length % width:
            width //= 2
        threads = WARP
        while threads < min(THREADS, -(-length // width)):
            threads *= 2
        most = length // (threads * width * STEPS)
        pieces = max(1, min(BLOCKS // rows, most)) if rows < BLOCKS else 1
        return cls(source, result, reduction, rows, length, width, threads, pieces)

    def __post_init__(self) -> None:
        self.dtype = self.reduction.dtype
        self._steps = -(-self.length // (self.pieces * self.threads * self.width))
        # Rows of a block: only a row of one warp shares nothing with it.
        most = min(THREADS // self.threads, self.rows)
        self._side_by_side = most if self.threads == WARP else 1
        count = number(self.rows * self.pieces)
        self.partial = tirx.decl_buffer((count,), self.dtype, f"{self.source.name}_of_pieces")

    def kernels(self) -> list[tirx.Stmt]:
        """One, or one for the pieces' totals and one that starts from these."""
        scan = launched(dict(self._extents()), self._scan)
        if self.pieces == 1:
            return [scan]
        return [launched(dict(self._extents()), self._totals), scan]

    def _extents(self) -> dict[str, int]:
        extents = {"blockIdx.x": -(-self.rows // self._side_by_side)}
        if self.pieces > 1:
            extents = {"blockIdx.x": self.pieces, "blockIdx.y": self.rows}
        if self._side_by_side > 1:
            extents["threadIdx.y"] = self._side_by_side
        return {**extents, "threadIdx.x": self.threads}

    def _place(self, ids: dict[str, ir.Expr]) -> tuple[ir.Expr, ir.Expr, ir.Expr | None]:
        """A thread's row and piece, and whether it has a row."""
        if self.pieces > 1:
            return ids["blockIdx.y"], ids["blockIdx.x"], None
        if self._side_by_side == 1:
            return ids["blockIdx.x"], number(0), None
        row = ids["blockIdx.x"] * number(self._side_by_side) + ids["threadIdx.y"]
        if self.rows % self._side_by_side == 0:
            return row, number(0), None
        # Threads without a row work on the last one: shuffles are of whole warps.
        return tirx.Min(row, number(self.rows - 1)), number(0), row < number(self.rows)

    def _first(self, piece: ir.Expr, step: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """The number in the row of a vector's first element."""
        turn = (piece * number(self._steps) + step) * number(self.threads) + lane
        return turn * number(self.width)

    def _is_there(self, first: ir.Expr) -> ir.Expr | None:
        whole = self.length == self.pieces * self._steps * self.threads * self.width
        return None if whole else first < number(self.length)

    def _loaded(self, row: ir.Expr, first: ir.Expr, values: tirx.Var) -> Statements:
        """The vector's numbers in the dtype of the sum; what changes nothing past the row's end."""
        vector = local(self.width, str(self.source.ty.dtype), f"{self.source.name}_vector")
        at = row * number(self.length) + first
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
            body = self._loaded(row, self._first(piece, n, lane), values)
            return body + each("lane", self.width, lambda i: add(tirx.BufferLoad(values, [i])))

        team = Team(self.threads, lane, True, allocations)
        body = [
            start(self.reduction, total),
            *each("step", self._steps, step, tirx.ForKind.SERIAL),
            *team.combine((self.reduction, total)),
        ]
        put = store(self.partial, only(total), row * number(self.pieces) + piece)
        body += guarded(tirx.EQ(lane, number(0)), [put])
        return [*map(tirx.AllocBuffer, allocations), *body]

    def _before_piece(
        self, row: ir.Expr, piece: ir.Expr, lane: ir.Expr, carry: tirx.Var, team: Team
    ) -> Statements:
        """What the pieces before a thread's have together."""
        if self.pieces == 1:
            return []
        add = adding(self.reduction, carry)

        def take(step: ir.Expr) -> Statements:
            other = step * number(self.threads) + lane
            value = tirx.BufferLoad(self.partial, [row * number(self.pieces) + other])
            return guarded(other < piece, add(value))

        steps = -(-self.pieces // self.threads)
        return [
            *each("step", steps, take, tirx.ForKind.SERIAL),
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
            first = self._first(piece, n, lane)
            body = self._loaded(row, first, values)
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
            at = row * number(self.length) + first
            stored = copy_vector(self.width, (self.result, at), (done, number(0)))
            return body + guarded(both(is_row, self._is_there(first)), stored)

        team = Team(self.threads, lane, True, allocations)
        body = [start(self.reduction, carry), *self._before_piece(row, piece, lane, carry, team)]
        body += each("step", self._steps, step, tirx.ForKind.SERIAL)
        return [*map(tirx.AllocBuffer, allocations), *body]
