"""Matrix products in a form that can be written out for threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import is_one, is_output, is_pointwise, same_extents, uses, written
from babytriton.passes.contractions import factors
from babytriton.passes.gpu.extents import Axis, split
from babytriton.passes.gpu.writer import Statements
from babytriton.passes.gpu.writing import (
    VECTOR,
    Place,
    copy_vector,
    each,
    item_bytes,
    load,
    local,
    number,
    store,
)
from babytriton.passes.nests import offset

BLOCKS = 108
"""Thread blocks that fill a GPU."""


@dataclass(frozen=True)
class Operand:
    """One of the two.

    Attributes:
        number: what is multiplied, by the product's axes: a load, or what a block before it has.
        name: of what holds the numbers.
        lines: the axes that the other operand has not, but the result.
        length: how many lines that are.
        is_along: whether lines go along the reduced axis in memory, and not across it.
        width: elements that a thread may load at once; 0 where none lie beside each other.
    """

    number: ir.Expr
    name: str
    lines: tuple[Axis, ...]
    length: int
    is_along: bool
    width: int

    @property
    def dtype(self) -> str:
        return str(self.number.ty.dtype)


@dataclass(frozen=True)
class Product:
    """A sum of products of two operands.

    Attributes:
        points: the axes of the results, in order.
        batch: those that both operands have.
        depth: the reduced axes, the last of which an operand lies along, if any does.
        left, right: the operands: the second has the last of the results' axes.
        sums: what holds the results.
        sum: what a result becomes by a product.
        factors: the loads that this multiplies, of the first operand and of the second.
    """

    points: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    left: Operand
    right: Operand
    sums: tirx.Var
    sum: ir.Expr
    factors: tuple[ir.TensorLoad, ir.TensorLoad]

    @classmethod
    def of(
        cls, sch: s_tir.Schedule, info: SBlockInfo, before: Sequence[SBlockInfo] = ()
    ) -> Product | None:
        """What a block computes, if it is that.

        Args:
            sch: of the kernel.
            info: the block.
            before: those that compute operands, point by point.
        """
        block = sch.get(info.block_rv)
        pair = factors(block.body)
        if pair is None or not all(isinstance(axis.dom, int) for axis in info.iters):
            return None
        axes = [(it.var, int(axis.dom), axis.kind) for it, axis in zip(block.iter_vars, info.iters)]
        units = {var: number(0) for var, extent, _ in axes if extent == 1}
        added, *loads = (at_point(x, units) for x in (block.body.value, *pair))
        points = tuple((var, n) for var, n, kind in axes if kind == "S" and n > 1)
        reduced = [(var, n) for var, n, kind in axes if kind == "R" and n > 1]
        if not reduced or not points or any(nodes(list(x.indices), ir.TensorLoad) for x in loads):
            return None
        left, right = sorted(loads, key=lambda x: uses(x, points[-1][0]))
        own = [tuple(axis for axis in points if uses(x, axis[0])) for x in (left, right)]
        batch = tuple(axis for axis in own[0] if axis in own[1])
        lines = [tuple(axis for axis in part if axis not in batch) for part in own]
        if not all(lines) or len(own[0]) + len(own[1]) - len(batch) != len(points):
            return None
        made = {written(sch, other): sch.get(other.block_rv) for other in before}
        found = [
            (depth, [_operand(x, part, depth[-1], made) for x, part in zip((left, right), lines)])
            for depth in _orders(reduced)
        ]
        depth, (first, second) = max(found, key=lambda x: sum(each.width > 0 for each in x[1]))
        sums = written(sch, info)
        return cls(points, batch, depth, first, second, sums, added, (left, right))

    def tile(
        self, block: ir.Expr, rows: int, columns: int
    ) -> tuple[dict[tirx.Var, ir.Expr], ir.Expr, ir.Expr]:
        """Where the results of a thread block are: which of the batch, and the first of the tile.

        Args:
            block: its number, along x alone, as CUDA has few blocks along the others.
            rows, columns: of a tile.
        """
        across, down = -(-self.right.length // columns), -(-self.left.length // rows)
        batch = split(tirx.floordiv(block, number(across * down)), self.batch)
        row = tirx.floormod(tirx.floordiv(block, number(across)), number(down))
        column = tirx.floormod(block, number(across))
        return batch, row * number(rows), column * number(columns)

    def plus(self, total: ir.Expr, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """What a sum so far becomes by the product of two numbers."""

        def read(access: ir.TensorLoad) -> ir.Expr:
            if access.source.same_as(self.sums):
                return total
            return left if tvm_ffi.structural_equal(access, self.factors[0]) else right

        return tvm_ffi.structural_map(self.sum, (ir.TensorLoad, read))


def _orders(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    """The axes with each of them as the last, in their own order first."""
    return [(*(axis for axis in axes if axis is not last), last) for last in reversed(axes)]


def _operand(
    load: ir.TensorLoad,
    lines: tuple[Axis, ...],
    depth: Axis,
    made: Mapping[tirx.Var, s_tir.SBlock],
) -> Operand:
    """An operand.

    Args:
        load: of a number.
        lines: its axes that are of the result.
        depth: the last of the axes that are reduced.
        made: the blocks that compute operands.
    """
    value, length = load, points_of(lines)
    if load.source in made:
        block = made[load.source]
        value = at_point(block.body.value, dict(zip(block.body.indices, load.indices)))
    place = offset(load.source, list(load.indices))
    orders = [] if nodes(place, ir.Call) else [(), *_orders(lines)]
    simplify = sym.Analyzer().simplify
    for order in orders:
        var, extent = order[-1] if order else depth
        first = simplify(at_point(place, {var: number(0)}))
        if not tvm_ffi.structural_equal(simplify(place - first), var):
            continue
        width = VECTOR // item_bytes(str(load.source.ty.dtype))
        found = sym.Analyzer().modular_set(first)
        while any(int(n) % width for n in (extent, found.coeff, found.base)):
            width //= 2
        width = 1 if load.source in made else width
        return Operand(value, load.source.name, order or lines, length, not order, width)
    return Operand(value, load.source.name, lines, length, True, 0)


def points_of(axes: Sequence[Axis]) -> int:
    """How many points axes have together."""
    return math.prod(int(extent) for _, extent in axes)


def at_point(expr: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    """The expression with values for some of its variables."""
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: values.get(var, var)))


@dataclass(frozen=True)
class Result:
    """What is computed of a product's sums, point by point.

    Attributes:
        store: at a point of the product's axes. Of the sums and of other results it reads its own
            point alone.
        is_kept: whether it is needed when the kernel is done.
    """

    store: tirx.BufferStore
    is_kept: bool

    def width(self, column: Axis, most: int) -> int:
        """How many numbers along an axis are a vector in memory, from any multiple of these on."""
        var, extent = column
        place = offset(self.store.buffer, list(self.store.indices))
        simplify = sym.Analyzer().simplify
        first = simplify(at_point(place, {var: number(0)}))
        if not tvm_ffi.structural_equal(simplify(place - first), var):
            return 1
        found = sym.Analyzer().modular_set(first)
        while any(int(n) % most for n in (extent, found.coeff, found.base)):
            most //= 2
        return most


@dataclass(frozen=True)
class Stores:
    """Stores what is computed of a product's sums, from registers.

    Attributes:
        product: of which the sums are.
        results: what is computed, in order.
        width: numbers of a row that are stored at once.
    """

    product: Product
    results: Sequence[Result]
    width: int

    @classmethod
    def of(cls, product: Product, results: Sequence[Result], most: int) -> Stores:
        """In vectors of as many numbers as fit, and no more than so many."""
        column = product.right.lines[-1]
        return cls(product, results, min(x.width(column, most) for x in results if x.is_kept))

    def of_row(self, at: Mapping[tirx.Var, ir.Expr], column: ir.Expr, sums: Place) -> Statements:
        """The stores of some numbers of a row.

        Args:
            at: the axes that are not along the row.
            column: of the first number.
            sums: where the registers with the sums begin.
        """
        known = {self.product.sums: sums}
        first = {**at, **split(column, self.product.right.lines)}
        done: Statements = []
        for result in self.results:
            put = result.store
            numbers = local(self.width, str(put.buffer.ty.dtype), f"{put.buffer.name}_vector")
            done.append(tirx.AllocBuffer(numbers))
            done += self._computed(put.value, numbers, at, column, known)
            known[put.buffer] = numbers, number(0)
            if result.is_kept:
                place = at_point(offset(put.buffer, list(put.indices)), first)
                done += copy_vector(self.width, (put.buffer, place), (numbers, number(0)))
        return done

    def _computed(
        self,
        value: ir.Expr,
        to: tirx.Var,
        at: Mapping[tirx.Var, ir.Expr],
        column: ir.Expr,
        known: Mapping[tirx.Var, Place],
    ) -> Statements:
        """The numbers of a result in a row, in registers.

        Args:
            value: of one.
            to: the registers.
            at: the axes that are not along the row.
            column: of the first number.
            known: where the sums and the results before are.
        """

        def one(n: ir.Expr) -> Statements:
            def read(access: ir.TensorLoad) -> ir.Expr:
                if access.source not in known:
                    return access
                buffer, first = known[access.source]
                return load(buffer, first + n)

            point = {**at, **split(column + n, self.product.right.lines)}
            own = tvm_ffi.structural_map(value, (ir.TensorLoad, read))
            return [store(to, at_point(own, point), n)]

        return each("lane", self.width, one)


def results_of(
    sch: s_tir.Schedule, found: Product, infos: Sequence[SBlockInfo]
) -> list[Result] | None:
    """What is computed of a product, in order; None if that is not point by point."""
    point = [var for var, _ in found.points]
    values: dict[tirx.Var, tuple[ir.Expr, ...]] = {found.sums: _index(sch, infos[0], point)}
    results: list[Result] = []
    if is_output(sch, infos[0]):
        own = list(values[found.sums])
        total = tirx.BufferLoad(found.sums, own)
        results.append(Result(tirx.BufferStore(found.sums, total, own), is_kept=True))
    for info in infos[1:]:
        sized = [n for n in info.dom() if not is_one(n)]
        if not is_pointwise(sch, info) or not same_extents(sized, [n for _, n in found.points]):
            return None
        block = sch.get(info.block_rv)
        names = {it.var: number(0) for it in block.iter_vars}
        inner = [it.var for it, axis in zip(block.iter_vars, info.iters) if not is_one(axis.dom)]
        names |= dict(zip(inner, point))
        put = tvm_ffi.structural_map(block.body, (ir.Var, lambda var, own=names: own.get(var, var)))
        for read in nodes(put.value, ir.TensorLoad):
            if read.source in values and not tvm_ffi.structural_equal(
                tuple(read.indices), values[read.source]
            ):
                return None
        values[put.buffer] = tuple(put.indices)
        results.append(Result(put, is_output(sch, info)))
    return results


def _index(sch: s_tir.Schedule, info: SBlockInfo, point: Sequence[tirx.Var]) -> tuple[ir.Expr, ...]:
    """The indices of a block's result at a point of the axes that are not 1."""
    block = sch.get(info.block_rv)
    units = {it.var: number(0) for it, axis in zip(block.iter_vars, info.iters) if is_one(axis.dom)}
    return tuple(units.get(index, index) for index in block.body.indices)
