"""Running sums and products on the CPU."""

from __future__ import annotations

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.passes.cpu.transposes import Values, picked, turned_over
from babytriton.passes.scans import RowScan, row_scan
from babytriton.passes.statements import is_number, sequence
from babytriton.passes.unchecked_schedules import schedule_of

# Rows that a thread walks along side by side, a part of each in turn: enough to hide the latency of
# an addition, and no more lines of cache at once than one set of it holds. A part is a line.
ROWS, PART = 4, 16

# Rows that vectors walk along, each of which has a number of every row.
LINES = 8


class Scan(ScheduleRule):
    """Takes running sums and products along the last axis of tensors.

    Each number waits for the one before it, so several rows are walked along side by side, in
    vectors where there are enough. Their order stays that of the walk. Stands aside for fewer rows.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        scan = row_scan(func)
        if scan is None or not scan.is_plain or not _may_be(scan.rows, ROWS):
            return None
        is_large = _may_be(scan.rows, LINES) and _may_be(scan.length, PART)
        in_vectors = is_large and _has_vectors(scan)
        body = _walk(scan, LINES if in_vectors else ROWS, in_vectors)
        root = s_tir.SBlock([], [], [], "root", body)
        whole = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        return schedule_of(func.with_body(whole))


def _may_be(size: int | ir.Expr, least: int) -> bool:
    """Whether a size is so much, or a call tells it."""
    return not isinstance(size, int) or size >= least


def _has_vectors(scan: RowScan) -> bool:
    """Whether TVM has variables of all vectors that the walk needs."""
    dtypes = (scan.source.ty.dtype, scan.result.ty.dtype, scan.dtype)
    return not {"bool", "bfloat16"} & set(map(str, dtypes))


def _walk(scan: RowScan, side_by_side: int, in_vectors: bool) -> tirx.Stmt:
    """Loops over groups of rows, over parts of a row, and along a part.

    Args:
        scan: what is computed.
        side_by_side: rows of a group.
        in_vectors: whether a step along a part is one of all rows at once.
    """
    group, part = tirx.Var("group", "int64"), tirx.Var("part", "int64")
    dtype, name = scan.dtype, f"{scan.source.name}_so_far"
    count = _index(side_by_side)
    so_far = tirx.decl_buffer((count,), dtype, name, scope="local")
    together = tirx.decl_buffer((_index(1),), f"{dtype}x{side_by_side}", name, scope="local")
    rows = [group * count + _index(n) for n in range(side_by_side)]
    height, length, size = _index(scan.rows), _index(scan.length), _index(PART)
    if not is_number(height % count, 0):  # The last group walks along the last row more than once.
        rows = [tirx.Min(row, height - 1) for row in rows]
    parts, rest = length // size, length % size
    has_rest = not is_number(rest, 0)
    each = [scan.start] * side_by_side
    body: list[tirx.Stmt] = []
    first = part * size
    if in_vectors:
        zero = [_index(0)]
        body += [tirx.AllocBuffer(together)]
        body += [tirx.BufferStore(together, tirx.Broadcast(scan.start, side_by_side), zero)]
        body += [_loop(part, parts, _together(scan, together, rows, first))]
        whole = tirx.BufferLoad(together, zero)
        each = [picked([whole], [n]) for n in range(side_by_side)]
    if has_rest or not in_vectors:
        body.append(tirx.AllocBuffer(so_far))
        body += [tirx.BufferStore(so_far, value, [_index(n)]) for n, value in enumerate(each)]
    if not (is_number(parts, 0) or in_vectors):
        body.append(_loop(part, parts, _one_by_one(scan, so_far, rows, first, size)))
    if has_rest:
        body += _one_by_one(scan, so_far, rows, parts * size, rest)
    return _loop(group, tirx.ceildiv(height, count), body, tirx.ForKind.PARALLEL)


def _one_by_one(
    scan: RowScan, so_far: tirx.Var, rows: list[ir.Expr], first: ir.Expr, count: ir.Expr
) -> list[tirx.Stmt]:
    """What walks along a part of each row, one row after the other.

    Args:
        scan: what is computed.
        so_far: holds what each row has up to here.
        rows: those of the group.
        first: where the part begins.
        count: of its numbers.
    """
    dtype, loops = scan.dtype, []
    is_known = isinstance(count, tirx.IntImm)
    kind = tirx.ForKind.UNROLLED if is_known else tirx.ForKind.SERIAL
    for n, row in enumerate(rows):
        place, own = tirx.Var("place", "int64"), [_index(n)]
        at = _index(scan.length) - 1 - first - place if scan.backwards else first + place
        value = tirx.BufferLoad(scan.source, _at(scan, scan.source, row, at))
        total = scan.combine(tirx.BufferLoad(so_far, own), tirx.Cast(dtype, value))
        found = tirx.Cast(scan.result.ty.dtype, tirx.BufferLoad(so_far, own))
        steps = [
            tirx.BufferStore(so_far, total, own),
            tirx.BufferStore(scan.result, found, _at(scan, scan.result, row, at)),
        ]
        loops.append(_loop(place, count, steps, kind))
    return loops


def _together(
    scan: RowScan, so_far: tirx.Var, rows: list[ir.Expr], first: ir.Expr
) -> list[tirx.Stmt]:
    """The same of a whole part, with a vector of all rows at each step.

    Squares of numbers turn over for that, and back.
    """
    size, bound, zero = len(rows), Values("walk"), [_index(0)]
    first = _index(scan.length) - PART - first if scan.backwards else first
    turn = -1 if scan.backwards else 1
    steps = [
        step
        for place in range(0, PART, size)
        for step in turned_over(
            [bound(_vector(scan, row, first + _index(place), size)) for row in rows], bound
        )
    ]
    total = bound(tirx.BufferLoad(so_far, zero))
    found = []
    for step in steps[::turn]:
        total = bound(scan.combine(total, tirx.Cast(f"{scan.dtype}x{size}", step)))
        found.append(bound(tirx.Cast(f"{scan.result.ty.dtype}x{size}", total)))
    found = found[::turn]
    squares = [turned_over(found[n : n + size], bound) for n in range(0, PART, size)]
    stores = [tirx.BufferStore(so_far, total, zero)]
    for n, row in enumerate(rows):
        line = picked([square[n] for square in squares], range(PART))
        *leading, place = _at(scan, scan.result, row, first)
        index = tirx.Ramp(place, _index(1), PART)
        stores.append(tirx.BufferStore(scan.result, line, [*leading, index]))
    return [*bound.statements, *stores]


def _vector(scan: RowScan, row: ir.Expr, place: ir.Expr, size: int) -> ir.Expr:
    *leading, first = _at(scan, scan.source, row, place)
    return tirx.BufferLoad(scan.source, [*leading, tirx.Ramp(first, _index(1), size)])


def _at(scan: RowScan, buffer: tirx.Var, row: ir.Expr, place: ir.Expr) -> list[ir.Expr]:
    return [*(_index(0) for _ in buffer.shape[1:]), row * _index(scan.length) + place]


def _loop(
    variable: tirx.Var,
    extent: ir.Expr,
    body: list[tirx.Stmt],
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    return tirx.For(variable, _index(0), extent, kind, sequence(body))


def _index(value: int | ir.Expr) -> ir.Expr:
    return tirx.const(value, "int64") if isinstance(value, int) else value
