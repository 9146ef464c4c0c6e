"""How many rows threads have that take turns along them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.passes.gpu.extents import Extent, known, product, whole_parts
from babytriton.passes.gpu.writing import as_expr, as_index, number, told


@dataclass(frozen=True)
class RowCounts:
    """Rows that parts have, which take turns along them; all of these are the same for all columns.

    Attributes:
        parts: how many there are.
        size: rows that each has of a whole turn; a power of two.
        whole: turns.
        rest: rows after these, which the first parts have.
    """

    parts: Extent
    size: int
    whole: Extent
    rest: Extent

    @classmethod
    def told(cls, rows: Extent, parts: Extent, size: int) -> tuple[RowCounts, list[tirx.Stmt]]:
        """Of so many rows; and what kernels are told before they are launched."""
        turn = product([parts, size])
        whole, before = told("whole", whole_parts(rows, turn))
        if isinstance(rows, int) and isinstance(turn, int):
            return cls(parts, size, whole, rows % turn), before
        rest, then = told("rest", as_expr(rows) - as_expr(whole) * as_expr(turn))
        return cls(parts, size, whole, rest), [*before, *then]

    def of_part(self, part: ir.Expr) -> ir.Expr:
        """Those of one."""
        return as_expr(self.whole) * number(self.size) + _wide(self._rest_of(part))

    def within(self, part: ir.Expr) -> RowCounts:
        """Those of the lines that one consists of, each of which has a row of it in a turn."""
        return RowCounts(self.size, 1, self.whole, self._rest_of(part))

    def _rest_of(self, part: ir.Expr) -> Extent:
        if self._is_even:
            return 0
        most = _few(self.size)
        return known(tirx.Max(tirx.Min(as_index(self.rest) - as_index(part) * most, most), _few(0)))

    @property
    def _is_even(self) -> bool:
        return isinstance(self.rest, int) and self.rest == 0

    def of_first(self, line: ir.Expr, lines: int, count: ir.Expr) -> ir.Expr:
        """Those of so many parts: of the first that a line has, if lines take turns along these."""
        return self._of_some(line, _few(lines.bit_length() - 1), as_index(count))

    def of_line(self, lines: int, line: ir.Expr, halvings: ir.Expr) -> ir.Expr:
        """Those of all parts that a line has, after lines were halved so many times.

        Args:
            lines: how many there were; a power of two.
            line: that.
            halvings: how often half of them took in what the others have.
        """
        bits = _few(lines.bit_length() - 1) - as_index(halvings)
        if isinstance(self.parts, int) and self.parts % lines == 0:
            turns = product([self.parts // lines, self.whole, self.size])
            if self._is_even:
                return as_expr(turns) << halvings
            count = _few(self.parts // lines) << as_index(halvings)
        else:
            count = _shared(as_index(self.parts), as_index(line), bits)
        return self._of_some(line, bits, count)

    def _of_some(self, line: ir.Expr, bits: ir.Expr, count: ir.Expr) -> ir.Expr:
        """Those of so many parts that a line has, of lines whose number has so many bits."""
        found = count.astype("int64") * as_expr(product([self.whole, self.size]))
        if self._is_even:
            return found
        line, rest = as_index(line), as_index(self.rest)
        last = rest >> _few(self.size.bit_length() - 1)  # has a part of the rest, or none
        more = tirx.Min(count, _shared(last, line, bits)) * _few(self.size)
        if self.size > 1:
            is_own = tirx.EQ(last & ((_few(1) << bits) - _few(1)), line)
            is_own = tirx.And(is_own, (last >> bits) < count)
            more = more + tirx.Select(is_own, rest & _few(self.size - 1), _few(0))
        return found + more.astype("int64")


def _few(count: int) -> ir.Expr:
    """A number of parts, or of rows of a turn: these are few."""
    return as_index(count)


def _wide(few: Extent) -> ir.Expr:
    return as_expr(few).astype("int64")


def _shared(count: ir.Expr, line: ir.Expr, bits: ir.Expr) -> ir.Expr:
    """How many of so many a line has, of lines whose number has so many bits."""
    return (count - line + (_few(1) << bits) - _few(1)) >> bits
