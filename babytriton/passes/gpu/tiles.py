"""How the threads of blocks share columns out, and the rows that these are reduced along."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from babytriton.passes.gpu.extents import Extent, parts, pieces, whole_parts
from babytriton.passes.gpu.writing import WARP, as_expr, number

# A GPU has some hundred processors, each of which runs up to two thousand threads. Blocks for as
# many of them as there are; blocks that it has no use for more than; and those that columns are
# shared out to while what a block reads of a row is long.
ENOUGH, BLOCKS, MANY = 128, 1024, 512

# Threads of a block whose size nothing else tells; threads that fill a GPU, and bytes that these
# load at once.
BLOCK = 256
THREADS, BYTES = 1 << 18, 1 << 21

# Rows of which a thread loads what it needs before it waits for any of it; and those that it may
# go through before it is worth another launch to have more threads for them.
AT_ONCE, LONG = 8, 32

# Bytes that a block reads of a row, at least: memory gives no fewer at once.
TOGETHER = 64


@dataclass(frozen=True)
class Tile:
    """The columns of a thread block.

    Attributes:
        width: columns of a vector.
        lanes: vectors beside each other, each a thread's.
        lines: threads of each vector: these take turns along the rows.
    """

    width: int
    lanes: int = WARP
    lines: int = 1

    @property
    def columns(self) -> int:
        """How many there are."""
        return self.width * self.lanes

    @classmethod
    def of(
        cls, length: Extent, rows: Extent, width: int, item: int, most: int, fill: int = THREADS
    ) -> tuple[Tile, Extent]:
        """For columns of so many rows; and how many pieces the rows are to be cut into.

        One, where a block's threads are enough for its columns: another launch takes time. Of
        lengths that a call tells, as many as fill a GPU with the columns that there are then.

        Args:
            length: how many columns there are.
            rows: their length.
            width: columns of a vector.
            item: bytes of one of its numbers, at most.
            most: threads that a block may have.
            fill: that fill a GPU.
        """
        tall = rows if isinstance(rows, int) else THREADS * LONG
        if not isinstance(length, int):
            lines = _power(min(tall // AT_ONCE, BLOCK // WARP))
            tile = cls(width, BLOCK // lines, lines)
            return tile, 1 if tall < LONG * lines else tile.pieces(length, rows)
        across = -(-length // width)
        least = max(1, min(WARP, TOGETHER // (width * item)))
        full = min(fill, BYTES // (width * item))
        enough, lanes = max(ENOUGH, full // _power(most)), BLOCK
        while lanes > least and -(-across // lanes) < (MANY if lanes > 2 * least else enough):
            lanes //= 2
        lines = _power(min(tall // AT_ONCE, most // lanes, full // across))
        if -(-across // lanes) >= enough or tall < LONG * lines:
            return cls(width, max(lanes, WARP // lines), lines), 1
        lanes = min(WARP, max(least, 1 << (across - 1).bit_length()))
        tile = cls(width, lanes, BLOCK // lanes)
        return tile, tile.pieces(length, rows)

    def pieces(self, length: Extent, rows: Extent) -> Extent:
        """How many pieces rows are cut into, for the blocks of all columns to fill a GPU."""
        across = tirx.Max(as_expr(parts(length, self.columns)), number(1))
        wanted = tirx.floordiv(number(BLOCKS), across)
        return pieces(wanted, whole_parts(rows, self.lines * AT_ONCE))


def _power(count: int) -> int:
    """The largest power of two that is no more."""
    return 1 << (max(count, 1).bit_length() - 1)
