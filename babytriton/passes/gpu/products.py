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
from babytriton.passes.gpu.extents import Axis
from babytriton.passes.gpu.writing import VECTOR, item_bytes, number
from babytriton.passes.nests import offset


@dataclass(frozen=True)
class Operand:
    """One of the two.

    Attributes:
        load: of a number.
        lines: the axes that the other operand has not, but the result.
        length: how many lines that are.
        is_along: whether lines go along the reduced axis in memory, and not across it.
        width: elements that a thread may load at once.
    """

    load: ir.TensorLoad
    lines: tuple[Axis, ...]
    length: int
    is_along: bool
    width: int

    @property
    def dtype(self) -> str:
        return str(self.load.source.ty.dtype)


@dataclass(frozen=True)
class Product:
    """A sum of products of two operands.

    Attributes:
        points: the axes of the results, in order.
        batch: those that both operands have.
        depth: the reduced axes, the last of which an operand lies along, if any does.
        left, right: the operands: the second has the last of the results' axes.
        sums: what holds the results.
    """

    points: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    left: Operand
    right: Operand
    sums: tirx.Var

    @classmethod
    def of(cls, sch: s_tir.Schedule, info: SBlockInfo, dtypes: Sequence[str]) -> Product | None:
        """What a block computes, if it is that, of numbers of such dtypes."""
        block = sch.get(info.block_rv)
        loads = factors(block.body)
        if loads is None or str(written(sch, info).ty.dtype) != "float32":
            return None
        if not all(isinstance(axis.dom, int) for axis in info.iters):
            return None
        axes = [(it.var, int(axis.dom), axis.kind) for it, axis in zip(block.iter_vars, info.iters)]
        units = {var: number(0) for var, extent, _ in axes if extent == 1}
        loads = tvm_ffi.structural_map(list(loads), (ir.Var, lambda var: units.get(var, var)))
        points = tuple((var, n) for var, n, kind in axes if kind == "S" and n > 1)
        reduced = [(var, n) for var, n, kind in axes if kind == "R" and n > 1]
        dtype = str(loads[0].source.ty.dtype)
        if not reduced or not points or dtype not in dtypes:
            return None
        if str(loads[1].source.ty.dtype) != dtype:
            return None
        left, right = sorted(loads, key=lambda x: uses(x, points[-1][0]))
        own = [tuple(axis for axis in points if uses(x, axis[0])) for x in (left, right)]
        batch = tuple(axis for axis in own[0] if axis in own[1])
        lines = [tuple(axis for axis in part if axis not in batch) for part in own]
        if not all(lines) or len(own[0]) + len(own[1]) - len(batch) != len(points):
            return None
        for depth in _orders(reduced):
            first, second = (_operand(x, part, depth[-1]) for x, part in zip((left, right), lines))
            if first is not None and second is not None:
                return cls(points, batch, depth, first, second, written(sch, info))
        return None


def _orders(axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
    """The axes with each of them as the last, in their own order first."""
    return [(*(axis for axis in axes if axis is not last), last) for last in reversed(axes)]


def _operand(load: ir.TensorLoad, lines: tuple[Axis, ...], depth: Axis) -> Operand | None:
    """An operand, if its numbers lie beside each other along a reduced axis or an axis of lines."""
    if nodes(list(load.indices), ir.TensorLoad) or nodes(list(load.indices), ir.Call):
        return None
    place = offset(load.source, list(load.indices))
    simplify = sym.Analyzer().simplify
    for order in ((), *_orders(lines)):
        var, extent = order[-1] if order else depth
        first = simplify(at_point(place, {var: number(0)}))
        if not tvm_ffi.structural_equal(simplify(place - first), var):
            continue
        width = VECTOR // item_bytes(str(load.source.ty.dtype))
        found = sym.Analyzer().modular_set(first)
        while any(int(n) % width for n in (extent, found.coeff, found.base)):
            width //= 2
        return Operand(load, order or lines, points_of(lines), not order, width)
    return None


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

    def is_in_pairs(self, column: Axis) -> bool:
        """Whether two numbers along an axis, from an even one on, are a vector in memory."""
        var, extent = column
        place = offset(self.store.buffer, list(self.store.indices))
        simplify = sym.Analyzer().simplify
        first = simplify(at_point(place, {var: number(0)}))
        if int(extent) % 2 or not tvm_ffi.structural_equal(simplify(place - first), var):
            return False
        found = sym.Analyzer().modular_set(first)
        return int(found.coeff) % 2 == 0 and int(found.base) % 2 == 0


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
