"""Tiles at the edges of a matrix product's results.

A tile that would go over the last row is moved up, and some rows are stored twice. The last columns
get code of their own, in shorter vectors, which computes and stores no more than there is. So
neither asks at each element where it is. What is added to the numbers that were there is stored
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.statements import (
    at_step,
    conjuncts,
    is_number,
    renamed,
    sequence,
    statements,
    with_parts,
    without_marks,
)

# Marks a loop over tiles: how many rows there are, and how many a tile has, or 0 where it is not to
# be moved; how many columns there are, and a tile has; the lanes of a register; and whether there
# is something to compute with over the last column.
_TILES = "babytriton.tiles"

# Mark loops over a tile's rows, and columns.
_ROWS, _COLUMNS = "babytriton.tile_rows", "babytriton.tile_columns"


def mark_tiles(
    sch: s_tir.Schedule,
    tiles: s_tir.schedule.LoopRV,
    rows: tuple[int, int],
    columns: tuple[int, int],
    lanes: int,
    is_filled: bool,
) -> None:
    """Have the tiles of a loop end at the edges.

    Args:
        sch: the kernel.
        tiles: the loop.
        rows: how many there are, and how many a tile has; 0 where it is not to be moved.
        columns: likewise.
        lanes: of a register.
        is_filled: whether there is something to compute with over the last column.
    """
    sch.annotate(tiles, _TILES, [*rows, *columns, lanes, int(is_filled)])


def mark_tile(sch: s_tir.Schedule, i: s_tir.schedule.LoopRV, j: s_tir.schedule.LoopRV) -> None:
    """Say which loops go over the rows and the columns of a tile."""
    sch.annotate(i, _ROWS, 1)
    sch.annotate(j, _COLUMNS, 1)


def at_edges(body: tirx.Stmt) -> tirx.Stmt:
    """A kernel of plain loops, whose tiles end at the edges."""
    if not any(_ROWS in loop.annotations for loop in nodes(body, tirx.For)):
        return body
    ranges = {loop.loop_var: ir.Range(loop.min, loop.extent) for loop in nodes(body, tirx.For)}

    def ended(loop: tirx.For) -> tirx.For:
        if _TILES not in loop.annotations:
            return loop
        height, rows, width, columns, lanes, is_filled = map(int, loop.annotations[_TILES])
        parts = statements(loop.body)
        memory = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
        work = sequence([part for part in parts if not isinstance(part, tirx.AllocBuffer)])
        tile = _Tile(work, memory, ranges)
        if rows and height % rows and rows < height and not tile.adds:
            tile = tile.moved_up(height, rows)
        if width % columns:
            vectors = _Vectors(lanes, bool(is_filled), not tile.adds)
            return with_parts(loop, tile.in_parts(width, columns, vectors))
        return with_parts(loop, tile.whole)

    def unmarked(loop: tirx.For) -> tirx.For:
        return without_marks(loop, _TILES, _ROWS, _COLUMNS)

    return tvm_ffi.structural_map(
        tvm_ffi.structural_map(body, (tirx.For, ended)), (tirx.For, unmarked)
    )


@dataclass(frozen=True)
class _Tile:
    """What computes and stores a tile of results.

    Attributes:
        body: does it.
        allocations: of memory of the tile alone.
        ranges: of all loops.
    """

    body: tirx.Stmt
    allocations: Sequence[tirx.AllocBuffer]
    ranges: Mapping[tirx.Var, ir.Range]

    @cached_property
    def memory(self) -> set[tirx.Var]:
        """That of the tile alone."""
        return {each.buffer for each in self.allocations}

    @property
    def whole(self) -> tirx.Stmt:
        """What computes and stores the tile, with its memory."""
        return sequence([*self.allocations, self.body])

    @property
    def adds(self) -> bool:
        """Whether what is stored is computed from what was there."""
        return any(
            load.source.same_as(store.buffer)
            for store in nodes(self.body, tirx.BufferStore)
            if store.buffer not in self.memory
            for load in nodes(store.value, ir.TensorLoad)
        )

    def moved_up(self, height: int, rows: int) -> _Tile:
        """The tile no lower than the last one that is whole."""
        first = self._first(_ROWS, height)
        if first is None:
            return self
        dtype = first.ty.dtype
        row, last = tirx.Var("row", dtype), tirx.const(height - rows, dtype)
        # The row is put in its place at the end: sums with a minimum are not made simpler.
        analyzer = self._analyzer()
        analyzer.bind(row, ir.Range(tirx.const(0, dtype), last + 1))

        def moved(loop: tirx.For) -> tirx.For:
            if _ROWS not in loop.annotations:
                return loop
            variable = loop.loop_var
            return with_parts(loop, self._placed(loop, variable + (row - first), variable))

        body = tvm_ffi.structural_map(self.body, (tirx.For, moved))
        body = _simple(_decided(body, lambda a, b: analyzer.can_prove(a < b)), analyzer)
        return _Tile(at_step(body, row, tirx.min(first, last)), self.allocations, self.ranges)

    def _placed(self, loop: tirx.For, place: ir.Expr, within: ir.Expr) -> tirx.Stmt:
        """What a loop does, at one place of the tensors and another one of the tile's memory."""
        variable = loop.loop_var
        own = tirx.Var("within", variable.ty.dtype)

        def load(node: ir.TensorLoad) -> ir.TensorLoad:
            if node.source not in self.memory:
                return node
            return tirx.BufferLoad(node.source, at_step(list(node.indices), variable, own))

        def store(node: tirx.BufferStore) -> tirx.BufferStore:
            if node.buffer not in self.memory:
                return node
            indices = at_step(list(node.indices), variable, own)
            return tirx.BufferStore(node.buffer, node.value, indices)

        body = tvm_ffi.structural_map(loop.body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])
        return at_step(at_step(body, variable, place), own, within)

    def in_parts(self, width: int, columns: int, vectors: _Vectors) -> tirx.Stmt:
        """The tile, or only the columns that there are, where it is the last one of its rows.

        Each has memory of its own: numbers that are now vectors and now not are in no register.

        Args:
            width: how many columns there are.
            columns: how many a tile has.
            vectors: that go over them.
        """
        first = self._first(_COLUMNS, width)
        if first is None:
            return self.whole
        last = renamed(self._of_columns(first, width, width % columns, vectors))
        if width < columns:
            return last
        test = first + tirx.const(columns, first.ty.dtype) <= tirx.const(width, first.ty.dtype)
        return tirx.IfThenElse(test, self._of_columns(first, width, columns, vectors), last)

    def _of_columns(self, first: ir.Expr, width: int, columns: int, vectors: _Vectors) -> tirx.Stmt:
        """What computes and stores so many columns, all of which there are."""
        simplify = self._analyzer().simplify

        def cut(loop: tirx.For) -> tirx.Stmt:
            if _COLUMNS not in loop.annotations:
                return loop
            variable, dtype = loop.loop_var, loop.loop_var.ty.dtype

            def is_less(index: ir.Expr, limit: ir.Expr) -> bool:
                is_column = tvm_ffi.structural_equal(simplify(index - first), variable)
                return is_column and is_number(limit, width)

            loop = with_parts(loop, _decided(loop.body, is_less))
            if int(loop.extent) == columns:
                return loop
            is_within = all(x.buffer in self.memory for x in nodes(loop.body, tirx.BufferStore))
            parts: list[tirx.Stmt] = []
            for column, size, place in vectors.of(columns, is_within):
                step = tirx.Var(variable.name, dtype) if size > 1 else tirx.const(0, dtype)
                at = [step + tirx.const(start, dtype) for start in (column, place)]
                part = self._placed(loop, *at)
                if size > 1:
                    zero, extent = tirx.const(0, dtype), tirx.const(size, dtype)
                    part = tirx.For(step, zero, extent, loop.kind, part)
                parts.append(part)
            return sequence(parts)

        return tvm_ffi.structural_map(self.whole, (tirx.For, cut))

    def _first(self, mark: str, size: int) -> ir.Expr | None:
        """The first row or column of the tile, of as many; None where it does not go over."""
        for loop in nodes(self.body, tirx.For):
            if mark not in loop.annotations:
                continue
            for index in _bounded(loop.body, size):
                if uses(index, loop.loop_var):
                    zero = tirx.const(0, loop.loop_var.ty.dtype)
                    return self._analyzer().simplify(at_step(index, loop.loop_var, zero))
        return None

    def _analyzer(self) -> sym.Analyzer:
        analyzer = sym.Analyzer()
        for variable, steps in self.ranges.items():
            analyzer.bind(variable, steps)
        return analyzer


def _bounded(body: tirx.Stmt, size: int) -> Iterator[ir.Expr]:
    """The indices that are asked to be, or made to be, less than a size."""
    for test in nodes(body, tirx.LT):
        if isinstance(test.b, tirx.IntImm) and int(test.b) == size:
            yield test.a
    for least in nodes(body, tirx.Min):
        if isinstance(least.b, tirx.IntImm) and int(least.b) == size - 1:
            yield least.a


def _decided(body: tirx.Stmt, is_less: Callable[[ir.Expr, ir.Expr], bool]) -> tirx.Stmt:
    """The statement without asking whether an index is less than a size, where that is known."""

    def branch(node: tirx.IfThenElse) -> tirx.Stmt:
        tests = conjuncts(node.condition)
        open_ones = [t for t in tests if not (isinstance(t, tirx.LT) and is_less(t.a, t.b))]
        if node.else_case is not None or len(open_ones) == len(tests):
            return node
        if not open_ones:
            return node.then_case
        return tirx.IfThenElse(tirx.all(*open_ones), node.then_case, None)

    def least(node: tirx.Min) -> ir.Expr:
        return node.a if is_less(node.a, node.b + tirx.const(1, node.b.ty.dtype)) else node

    return tvm_ffi.structural_map(body, [(tirx.IfThenElse, branch), (tirx.Min, least)])


def _simple(body: tirx.Stmt, analyzer: sym.Analyzer) -> tirx.Stmt:
    """The statement with short indices."""

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(node.source, [analyzer.simplify(index) for index in node.indices])

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        indices = [analyzer.simplify(index) for index in node.indices]
        return tirx.BufferStore(node.buffer, node.value, indices)

    return tvm_ffi.structural_map(body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])


@dataclass(frozen=True)
class _Vectors:
    """Vectors that have the columns of a tile, of which the last one has some twice, or none.

    Attributes:
        lanes: of a register.
        is_filled: whether there is something to compute with over the last column.
        may_repeat: whether columns may be stored twice.
    """

    lanes: int
    is_filled: bool
    may_repeat: bool

    def of(self, columns: int, is_within: bool) -> Iterator[tuple[int, int, int]]:
        """Their first columns, their sizes, and where in the tile's memory they begin.

        Args:
            columns: how many there are.
            is_within: whether they are of what is stored in the tile's memory alone.
        """
        place = 0
        goes_over = self.is_filled and is_within
        while place < columns:
            rest = columns - place
            size = 1 << (rest.bit_length() - 1)
            repeats = self.may_repeat and 2 * size <= columns
            if size < rest < self.lanes and (goes_over or repeats):
                size *= 2
            column = place if goes_over else min(place, columns - size)
            yield column, size, column if self.is_filled else place
            place += size
