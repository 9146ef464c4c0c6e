"""Matrix products on the GPU, of numbers of any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import inline_cheap, is_output, is_pointwise, open_kernel, reads_from
from babytriton.passes.contractions import has_few_rows
from babytriton.passes.gpu.extents import split
from babytriton.passes.gpu.products import (
    BLOCKS,
    Operand,
    Product,
    Result,
    Stores,
    at_point,
    points_of,
    results_of,
)
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    both,
    copy_vector,
    each,
    guarded,
    item_bytes,
    launched,
    load,
    local,
    number,
    shared,
    store,
    written_out,
)
from babytriton.passes.intrinsics import function_name
from babytriton.passes.nests import offset
from babytriton.passes.statements import sequence


@dataclass(frozen=True)
class Tile:
    """Results of a thread block, as many along both sides.

    Attributes:
        lines: along a side.
        width: of these, how many a thread has beside each other.
        parts: how often it has so many.
        bytes: of each line of an operand that are in shared memory at once, at most.
        widest: bytes of a sum, at most, for a thread's registers to hold its own.
    """

    lines: int
    width: int
    parts: int
    bytes: int
    widest: int = 8

    @property
    def own(self) -> int:
        """Lines of a thread."""
        return self.width * self.parts

    @property
    def across(self) -> int:
        """Threads along a side."""
        return self.lines // self.own

    @property
    def threads(self) -> int:
        """Of the block."""
        return self.across * self.across

    def blocks(self, rows: int, columns: int) -> int:
        """How many blocks so many results take."""
        return -(-rows // self.lines) * -(-columns // self.lines)


TILES = (Tile(128, 4, 2, 32, widest=4), Tile(64, 4, 1, 64), Tile(32, 2, 1, 128))
"""The results of a thread block, for larger products first."""


class Matmul(ScheduleRule):
    """Takes matrix products, also batched, and convolutions, with pointwise blocks around them.

    A block of threads computes a tile of results: it brings some columns of the first operand and
    as many rows of the second into shared memory at a time, of which each thread multiplies a few
    lines in registers. Stands aside for an operand of a few rows, such as a vector: that is no more
    work than reading the other one, which sums along rows or columns do best; for what follows and
    is not done point by point; and for sizes that a call tells.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _: bool) -> s_tir.Schedule | None:
        kernel = open_kernel(func)
        if kernel is None:
            return None
        sch, infos = kernel
        products = [info for info in infos if info.is_reduction()]
        if len(products) != 1 or has_few_rows(sch.get(products[0].block_rv)):
            return None
        infos = inline_cheap(sch, infos, repeat_calls=True, keep_for=products)
        place = next(n for n, info in enumerate(infos) if info.is_reduction())
        before, after = infos[:place], infos[place:]
        if not all(_is_for_it(sch, info, infos) for info in before):
            return None
        found = Product.of(sch, after[0], before)
        results = None if found is None else results_of(sch, found, after)
        if found is None or results is None:
            return None
        return written_out(sch.mod["main"], [Writer(found, results).kernel()])


def _is_for_it(sch: s_tir.Schedule, info: SBlockInfo, infos: Sequence[SBlockInfo]) -> bool:
    """Whether a block computes what only a product reads, from nothing but arguments."""
    readers = [other for other in infos if reads_from(sch, other, info)]
    own = sch.mod["main"].body.block.alloc_buffers
    values = nodes(sch.get(info.block_rv).body, ir.TensorLoad)
    return (
        is_pointwise(sch, info)
        and not is_output(sch, info)
        and all(reader.is_reduction() for reader in readers)
        and not any(value.source in own for value in values)
    )


class Writer:
    """Writes the kernel out.

    Args:
        product: what is computed.
        results: what of it is stored.
    """

    def __init__(self, product: Product, results: Sequence[Result]) -> None:
        self._product = product
        self._dtype = str(product.sums.ty.dtype)
        self._batches = points_of(product.batch)
        self._tile = tile = self._fitting()
        self._sums = local(tile.own**2, self._dtype, f"{product.sums.name}_tile")
        self._stores = Stores.of(product, results, tile.width)
        operands = product.left, product.right
        # No longer than the sums are, as far as each thread has a number to bring.
        most = tile.bytes // max(item_bytes(each.dtype) for each in operands)
        least = max(1, tile.threads // tile.lines)
        self._depth = max(least, min(most, _power_of_two(points_of(product.depth))))
        self._left, self._right = (Lines(product, x, tile, self._depth) for x in operands)

    def _fitting(self) -> Tile:
        """The largest tile of which there are enough to fill a GPU; the smallest otherwise."""
        left, right = self._product.left.length, self._product.right.length
        for tile in TILES[:-1]:
            is_whole = min(left, right) > tile.lines // 2
            if item_bytes(self._dtype) > tile.widest:
                continue
            if is_whole and tile.blocks(left, right) * self._batches >= BLOCKS:
                return tile
        return TILES[-1]

    def kernel(self) -> tirx.Stmt:
        """A tile of results for each block of threads."""
        blocks = self._tile.blocks(self._product.left.length, self._product.right.length)
        extents = {"blockIdx.x": self._batches * blocks, "threadIdx.x": self._tile.threads}
        return launched(extents, self._thread)

    def _thread(self, ids: dict[str, ir.Expr]) -> Statements:
        product, tile = self._product, self._tile
        thread, block = ids["threadIdx.x"], ids["blockIdx.x"]
        batch, row, column = product.tile(block, tile.lines, tile.lines)
        own = (
            tirx.floordiv(thread, number(tile.across)) * number(tile.width),
            tirx.floormod(thread, number(tile.across)) * number(tile.width),
        )
        left, right = self._left, self._right

        def step(n: ir.Expr) -> Statements:
            return [
                *left.brought(thread, row, n, batch),
                *right.brought(thread, column, n, batch),
                *each("place", self._depth, lambda place: self._added(place, own)),
            ]

        steps = -(-points_of(product.depth) // self._depth)
        zero = tirx.const(0, self._dtype)
        memory = [self._sums, *left.memory, *right.memory]
        return [
            *map(tirx.AllocBuffer, memory),
            *each("sum", tile.own**2, lambda n: [store(self._sums, zero, n)]),
            *each("step", steps, step, tirx.ForKind.SERIAL),
            *self._stored(row + own[0], column + own[1], batch),
        ]

    def _added(self, place: ir.Expr, own: tuple[ir.Expr, ir.Expr]) -> Statements:
        """What adds to a thread's sums the products of one number of each of its lines."""
        side = self._tile.own

        def add(n: ir.Expr, m: ir.Expr) -> Statements:
            at = n * number(side) + m
            left, right = self._left.number(n), self._right.number(m)
            return [store(self._sums, self._product.plus(load(self._sums, at), left, right), at)]

        return [
            *self._left.taken(place, own[0]),
            *self._right.taken(place, own[1]),
            *each("row", side, lambda n: each("column", side, lambda m: add(n, m))),
        ]

    def _stored(self, row: ir.Expr, column: ir.Expr, batch: dict[tirx.Var, ir.Expr]) -> Statements:
        """The stores of a thread's results.

        Args:
            row, column: of the first.
            batch: the axes that both operands have.
        """
        tile, left, right = self._tile, self._product.left, self._product.right
        apart, width = number(tile.lines // tile.parts), self._stores.width

        def one(down: ir.Expr, n: ir.Expr, across: ir.Expr, m: ir.Expr) -> Statements:
            at = row + down * apart + n
            first = column + across * apart + m * number(width)
            tests = (
                at < number(left.length) if left.length % tile.lines else None,
                first < number(right.length) if right.length % tile.lines else None,
            )
            line = down * number(tile.width) + n
            place = line * number(tile.own) + across * number(tile.width) + m * number(width)
            point = {**batch, **split(at, left.lines)}
            return guarded(both(*tests), self._stores.of_row(point, first, (self._sums, place)))

        def of_line(down: ir.Expr, n: ir.Expr) -> Statements:
            return each(
                "across",
                tile.parts,
                lambda across: each(
                    "vector", tile.width // width, lambda m: one(down, n, across, m)
                ),
            )

        return each(
            "down",
            tile.parts,
            lambda down: each("row", tile.width, lambda n: of_line(down, n)),
        )


class Lines:
    """An operand on its way from memory, by way of shared memory, to a thread's registers.

    In shared memory numbers of several lines lie beside each other.

    Args:
        product: whose operand it is.
        operand: that.
        tile: of the results.
        depth: numbers of each line that are brought at once.
    """

    def __init__(self, product: Product, operand: Operand, tile: Tile, depth: int) -> None:
        self._operand, self._tile, self._axes, self._depth = operand, tile, product.depth, depth
        self._each = tile.lines * depth // tile.threads  # numbers that a thread brings
        self._width = max(1, min(operand.width, self._each))
        # What lies along the reduced axis in memory goes to more banks so; others are vectors.
        self._pitch = tile.lines + max(tile.width, 0 if operand.is_along else self._width)
        name, dtype = operand.name, operand.dtype
        self._shared = shared(depth * self._pitch, dtype, f"{name}_shared")
        self._next = local(self._width, dtype, f"{name}_next")
        self._taken = local(tile.own, dtype, f"{name}_of_thread")

    @property
    def memory(self) -> list[tirx.Var]:
        """What holds it."""
        return [self._shared, self._next, self._taken]

    def brought(
        self, thread: ir.Expr, first: ir.Expr, step: ir.Expr, batch: dict[tirx.Var, ir.Expr]
    ) -> Statements:
        """What brings a part into shared memory; zeros for what is not there.

        Args:
            thread: its number.
            first: line of the tile.
            step: the number of the part.
            batch: the axes that both operands have.
        """
        operand, tile, width = self._operand, self._tile, self._width
        depth = points_of(self._axes)
        inner = (self._depth if operand.is_along else tile.lines) // width

        def one(n: ir.Expr) -> Statements:
            vector = n * number(tile.threads) + thread
            outer = tirx.floordiv(vector, number(inner))
            within = tirx.floormod(vector, number(inner)) * number(width)
            line, along = (outer, within) if operand.is_along else (within, outer)
            at_line, at_depth = first + line, step * number(self._depth) + along
            is_there = both(
                at_line < number(operand.length) if operand.length % tile.lines else None,
                at_depth < number(depth) if depth % self._depth else None,
            )
            at = {**batch, **split(at_line, operand.lines), **split(at_depth, self._axes)}
            return [*self._loaded(at, is_there), *self._put(along, line)]

        return each("vector", self._each // width, one)

    def _loaded(self, at: dict[tirx.Var, ir.Expr], is_there: ir.Expr | None) -> Statements:
        """A vector, in registers."""
        value, simplify = self._operand.number, sym.Analyzer().simplify
        if self._operand.width > 0 and isinstance(value, ir.TensorLoad):
            place = simplify(at_point(offset(value.source, list(value.indices)), at))
            body = copy_vector(self._width, (self._next, number(0)), (value.source, place))
        else:
            body = [store(self._next, _with_plain_places(at_point(value, at)), number(0))]
        if is_there is None:
            return body
        zero = tirx.const(0, self._operand.dtype)
        empty = each("lane", self._width, lambda lane: [store(self._next, zero, lane)])
        return [tirx.IfThenElse(is_there, sequence(body), sequence(empty))]

    def _put(self, along: ir.Expr, line: ir.Expr) -> Statements:
        """What stores the vector in shared memory."""
        place = along * number(self._pitch) + line
        if not self._operand.is_along:
            return copy_vector(self._width, (self._shared, place), (self._next, number(0)))

        def one(lane: ir.Expr) -> Statements:
            value = load(self._next, lane)
            return [store(self._shared, value, place + lane * number(self._pitch))]

        return each("lane", self._width, one)

    def taken(self, place: ir.Expr, line: ir.Expr) -> Statements:
        """What takes one number of each of a thread's lines into registers.

        Args:
            place: of these along the lines.
            line: the first of the thread's.
        """
        tile, apart = self._tile, number(self._tile.lines // self._tile.parts)

        def part(n: ir.Expr) -> Statements:
            source = place * number(self._pitch) + line + n * apart
            own = self._taken, n * number(tile.width)
            return copy_vector(tile.width, own, (self._shared, source))

        return each("part", tile.parts, part)

    def number(self, n: ir.Expr) -> ir.Expr:
        """What was taken of the n-th of a thread's lines."""
        return load(self._taken, n)


def _power_of_two(count: int) -> int:
    """The least that is no less."""
    return 1 << (count - 1).bit_length()


def _with_plain_places(value: ir.Expr) -> ir.Expr:
    """A number with plainer places that it is read at, and tests of these; not of other numbers."""
    simplify = sym.Analyzer().simplify

    def read(access: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(access.source, [simplify(index) for index in access.indices])

    def choice(call: ir.Call) -> ir.Call:
        if function_name(call) != "if_then_else" or nodes(call.args[0], ir.TensorLoad):
            return call
        return tirx.if_then_else(simplify(call.args[0]), *call.args[1:])

    return tvm_ffi.structural_map(value, [(ir.TensorLoad, read), (ir.Call, choice)])
