"""How many rows threads have that take turns along them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from babytriton.passes.gpu.extents import Extent, known, product
from babytriton.passes.gpu.writing import as_expr, number


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
    def of(cls, rows: Extent, parts: Extent, size: int, whole: Extent) -> RowCounts:
        """Of so many rows."""
        turn = product([parts, size])
        if isinstance(rows, int) and isinstance(turn, int):
            return cls(parts, size, whole, rows % turn)
        return cls(parts, size, whole, as_expr(rows) - as_expr(whole) * as_expr(turn))

    def of_part(self, part: ir.Expr) -> ir.Expr:
        """Those of one."""
        return as_expr(self.whole) * number(self.size) + as_expr(self._rest_of(part))

    def within(self, part: ir.Expr) -> RowCounts:
        """Those of the lines that one consists of, each of which has a row of it in a turn."""
        return RowCounts(self.size, 1, self.whole, self._rest_of(part))

    def _rest_of(self, part: ir.Expr) -> Extent:
        if self._is_even:
            return 0
        most = number(self.size)
        rest = as_expr(self.rest) - part * most
        return known(tirx.Max(tirx.Min(rest, most), number(0)))

    @property
    def _is_even(self) -> bool:
        return isinstance(self.rest, int) and self.rest == 0

    def of_first(self, line: ir.Expr, lines: int, count: ir.Expr) -> ir.Expr:
        """Those of so many parts: of the first that a line has, if lines take turns along these."""
        return self._of_some(line, number(lines.bit_length() - 1), count)

    def of_line(self, lines: int, line: ir.Expr, halvings: ir.Expr) -> ir.Expr:
        """Those of all parts that a line has, after lines were halved so many times.

        Args:
            lines: how many there were; a power of two.
            line: that.
            halvings: how often half of them took in what the others have.
        """
        bits = number(lines.bit_length() - 1) - halvings
        if isinstance(self.parts, int) and self.parts % lines == 0:
            turns = product([self.parts // lines, self.whole, self.size])
            if self._is_even:
                return as_expr(turns) << halvings
            count = number(self.parts // lines) << halvings
        else:
            count = _shared(as_expr(self.parts), line, bits)
        return self._of_some(line, bits, count)

    def _of_some(self, line: ir.Expr, bits: ir.Expr, count: ir.Expr) -> ir.Expr:
        """Those of so many parts that a line has, of lines whose number has so many bits."""
        found = count * as_expr(product([self.whole, self.size]))
        if self._is_even:
            return found
        rest, size = as_expr(self.rest), number(self.size)
        last = rest >> number(self.size.bit_length() - 1)  # has a part of the rest, or none
        found = found + tirx.Min(count, _shared(last, line, bits)) * size
        if self.size == 1:
            return found
        is_own = tirx.EQ(last & ((number(1) << bits) - number(1)), line)
        is_own = tirx.And(is_own, (last >> bits) < count)
        return found + tirx.Select(is_own, rest & number(self.size - 1), number(0))


def _shared(count: ir.Expr, line: ir.Expr, bits: ir.Expr) -> ir.Expr:
    """How many of so many a line has, of lines whose number has so many bits."""
    return (count - line + (number(1) << bits) - number(1)) >> bits
