"""How many rows threads have that take turns along them."""

from __future__ import annotations

import pytest
from tvm import ir, sym

from babytriton.passes.gpu.row_counts import RowCounts
from babytriton.passes.gpu.writing import as_expr, number

LINES, AGAIN = 8, 4  # of a piece's threads, and of those that combine pieces


def value(expr: ir.Expr) -> int:
    return int(sym.Analyzer().simplify(expr))


@pytest.mark.parametrize("pieces", [1, 2, 5, 8])
@pytest.mark.parametrize("rows", [1, 7, 40, 64, 77, 128, 333])
@pytest.mark.parametrize("is_told", [False, True])
def test_rows_are_counted_as_they_are_shared_out(rows, pieces, is_told) -> None:
    whole, rest = divmod(rows, pieces * LINES)
    counts, before = RowCounts.told(rows, pieces, LINES)
    assert (counts, before) == (RowCounts(pieces, LINES, whole, rest), [])
    if is_told:
        counts = RowCounts(as_expr(pieces), LINES, as_expr(whole), as_expr(rest))
    owners = [(row // LINES % pieces, row % LINES) for row in range(rows)]
    for piece in range(pieces):
        own = [line for one, line in owners if one == piece]
        assert value(counts.of_part(number(piece))) == len(own)
        lines = counts.within(number(piece))
        for line in range(LINES):
            assert value(lines.of_part(number(line))) == own.count(line)
        for halvings in range(3):
            left = LINES >> halvings
            for line in range(left):
                found = value(lines.of_line(LINES, number(line), number(halvings)))
                assert found == sum(one % left == line for one in own)
    for halvings in range(2):
        left = AGAIN >> halvings
        for line in range(left):
            found = value(counts.of_line(AGAIN, number(line), number(halvings)))
            assert found == sum(piece % left == line for piece, _ in owners)
    for line in range(min(AGAIN, pieces)):
        for count in range(len(range(line, pieces, AGAIN)) + 1):
            firsts = range(line, pieces, AGAIN)[:count]
            found = value(counts.of_first(number(line), AGAIN, number(count)))
            assert found == sum(piece in firsts for piece, _ in owners)
