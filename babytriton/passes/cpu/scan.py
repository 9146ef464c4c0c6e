"""Running sums and products on the CPU."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.scans import RowScan
from babytriton.passes.statements import sequence

# Rows that a thread walks along side by side, a part of each in turn: enough to hide the latency of
# an addition, and no more lines of cache at once than one set of it holds.
ROWS, PART = 4, 16


class Scan(ScheduleRule):
    """Takes running sums and products along the last axis of tensors whose sizes are known.

    Each number waits for the one before it, so several rows are walked along side by side. Their
    order stays that of the walk. Stands aside for fewer rows.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        scan = RowScan.of(func)
        if scan is None or scan.rows < ROWS:
            return None
        body = _walk(scan)
        root = s_tir.SBlock([], [], [], "root", body)
        whole = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        return s_tir.Schedule(func.with_body(whole))


def _walk(scan: RowScan) -> tirx.Stmt:
    """Loops over groups of rows, over parts of a row, over the rows of a group, along a part."""
    source, result, rows, length = scan.source, scan.result, scan.rows, scan.length
    dtype = scan.start.ty.dtype
    totals = tirx.decl_buffer((_index(ROWS),), dtype, f"{source.name}_so_far", scope="local")
    group = tirx.Var("group", "int64")

    def at(buffer: tirx.Var, row: ir.Expr, place: ir.Expr) -> list[ir.Expr]:
        return [*(_index(0) for _ in buffer.shape[1:]), row * _index(length) + place]

    def along(first: ir.Expr, count: int) -> list[tirx.Stmt]:
        """What walks along a part of each row of the group, one row after the other."""
        loops = []
        for n in range(ROWS):
            row = group * _index(ROWS) + _index(n)
            if rows % ROWS:  # The last group walks along the last row more than once.
                row = tirx.Min(row, _index(rows - 1))
            place, own = tirx.Var("place", "int64"), [_index(n)]
            value = tirx.BufferLoad(source, at(source, row, first + place))
            total = scan.combine(tirx.BufferLoad(totals, own), tirx.Cast(dtype, value))
            found = tirx.Cast(result.ty.dtype, tirx.BufferLoad(totals, own))
            steps = [
                tirx.BufferStore(totals, total, own),
                tirx.BufferStore(result, found, at(result, row, first + place)),
            ]
            loops.append(_loop(place, count, steps, tirx.ForKind.UNROLLED))
        return loops

    start = [tirx.BufferStore(totals, scan.start, [_index(n)]) for n in range(ROWS)]
    part, parts = tirx.Var("part", "int64"), length // PART
    body = [tirx.AllocBuffer(totals), *start]
    if parts:
        body.append(_loop(part, parts, along(part * _index(PART), PART)))
    if length % PART:
        body += along(_index(parts * PART), length % PART)
    return _loop(group, -(-rows // ROWS), body, tirx.ForKind.PARALLEL)


def _loop(
    variable: tirx.Var,
    extent: int,
    body: list[tirx.Stmt],
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    return tirx.For(variable, _index(0), _index(extent), kind, sequence(body))


def _index(value: int) -> ir.Expr:
    return tirx.const(value, "int64")
