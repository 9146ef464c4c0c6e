"""Variances in one pass over the numbers instead of two.

The squared distances from the mean add up to those from another centre, less what their sum tells
of the distance between the two (Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983, equation 1.5). Few digits are lost where the centre is near the mean, as the mean
of the first numbers nearly always is. Where it turns out not to be, both passes follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.statements import Effects, at_step, sequence, statements, with_parts

# How many numbers the centre is the mean of, and of how many at least the variance is.
_FIRST, _LEAST = 16, 128
# How many times the variance the squared distance of the centre from the mean may be: by one more
# than that many times, errors of rounding grow.
_NEAR = 1.0


@dataclass(frozen=True)
class _Sum:
    """A nest of loops that adds up floats in one place, besides what else it does.

    Attributes:
        nest: the loops, the outermost first.
        store: that adds.
        value: what is added.
    """

    nest: list[tirx.For]
    store: tirx.BufferStore
    value: ir.Expr

    @property
    def buffer(self) -> tirx.Var:
        return self.store.buffer

    @property
    def total(self) -> ir.TensorLoad:
        """What has been added up."""
        return tirx.BufferLoad(self.store.buffer, self.store.indices)

    @property
    def body(self) -> list[tirx.Stmt]:
        return statements(self.nest[-1].body)

    @property
    def count(self) -> int:
        """How many numbers are added up; 0 if a call tells."""
        extents = [loop.extent for loop in self.nest]
        is_known = all(isinstance(extent, tirx.IntImm) for extent in extents)
        return math.prod(map(int, extents)) if is_known else 0

    def is_fixed(self, expr: ir.Expr) -> bool:
        """Whether an expression is the same at all steps."""
        return not any(uses(expr, loop.loop_var) for loop in self.nest)

    def const(self, number: float) -> ir.Expr:
        return tirx.const(number, self.value.ty.dtype)

    def set(self, value: ir.Expr) -> tirx.BufferStore:
        return tirx.BufferStore(self.store.buffer, value, self.store.indices)

    def loop(self, body: list[tirx.Stmt]) -> tirx.Stmt:
        """A nest over the same numbers with another body."""
        whole = sequence(body)
        for loop in reversed(self.nest):
            variable = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
            inner = at_step(whole, loop.loop_var, variable)
            whole = tirx.For(variable, loop.min, loop.extent, tirx.ForKind.SERIAL, inner)
        return whole


@dataclass(frozen=True)
class _Variance:
    """Two sums that a variance is computed from.

    Attributes:
        total: adds up the distances of numbers from a centre.
        square: adds up their squared distances from the mean.
        number: one of the numbers, at a step of the first.
        centre: of the first; None where the numbers themselves are added up.
        mean: what the second takes for it, by what the first has added up.
    """

    total: _Sum
    square: _Sum
    number: ir.Expr
    centre: ir.Expr | None
    mean: ir.Expr


def in_one_pass(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with variances from one pass, at every level."""
    if isinstance(stmt, tirx.For):
        return with_parts(stmt, in_one_pass(stmt.body))
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    parts = [in_one_pass(part) for part in statements(stmt)]
    places = [n for n, part in enumerate(parts) if _sums(part)]
    for last in places:
        for first in places:
            joined = _joined(parts, first, last) if first < last else None
            if joined is not None:
                return in_one_pass(sequence(joined))
    return sequence(parts)


def _sums(stmt: tirx.Stmt) -> list[_Sum]:
    """The sums of a nest of serial loops, all else of which stores elements."""
    nest: list[tirx.For] = []
    while isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL:
        if stmt.annotations or stmt.step is not None:
            return []
        nest.append(stmt)
        stmt = stmt.body
    stores = statements(stmt)
    if not nest or not all(isinstance(store, tirx.BufferStore) for store in stores):
        return []
    sums = []
    for store in stores:
        if isinstance(store.value, tirx.Add) and str(store.value.ty.dtype).startswith("float"):
            found = _Sum(nest, store, store.value.b)
            is_total = tvm_ffi.structural_equal(store.value.a, found.total)
            if is_total and all(map(found.is_fixed, store.indices)):
                sums.append(found)
    return sums


def _joined(parts: list[tirx.Stmt], first: int, last: int) -> list[tirx.Stmt] | None:
    """The statements with the loops of a variance in the place of the first; None if it is none.

    Args:
        parts: the statements.
        first: the place of what may add up the distances.
        last: of what may add up the squares, and does nothing else.
    """
    square, *others = _sums(parts[last])
    if others or len(square.body) != 1:
        return None
    between = parts[first + 1 : last]
    candidates = (_variance(total, square, between) for total in _sums(parts[first]))
    variance = next((one for one in candidates if one is not None), None)
    if variance is None or not _may_join(parts[first], between, variance):
        return None
    start = _start(parts[:last], square)
    if start is None or _start(parts[:first], variance.total) is None:
        return None
    kept = [part for part in parts[:last] if part is not parts[first] and part is not start]
    before = [part for part in parts[:first] if part is not start]
    return [*before, start, *_one_pass(variance), *kept[len(before) :], *parts[last + 1 :]]


def _variance(total: _Sum, square: _Sum, between: list[tirx.Stmt]) -> _Variance | None:
    """The two as a variance's sums, if the second adds up what the first tells the mean of."""
    product = square.value
    if total.count < _LEAST or not _are_of_one_range(total, square):
        return None
    if not isinstance(product, tirx.Mul) or not tvm_ffi.structural_equal(product.a, product.b):
        return None
    if not isinstance(product.a, tirx.Sub) or not square.is_fixed(product.a.b):
        return None
    number, mean = product.a.a, _resolved(product.a.b, between)
    for own, its in zip(square.nest, total.nest):
        number = at_step(number, own.loop_var, its.loop_var)
    if tvm_ffi.structural_equal(total.value, number):
        return _Variance(total, square, number, None, mean) if _is_mean(mean, total) else None
    distance = total.value
    if not isinstance(distance, tirx.Sub) or not tvm_ffi.structural_equal(distance.a, number):
        return None
    if not isinstance(mean, tirx.Add) or not tvm_ffi.structural_equal(mean.b, distance.b):
        return None
    if not total.is_fixed(distance.b) or not _is_mean(mean.a, total):
        return None
    return _Variance(total, square, number, distance.b, mean)


def _are_of_one_range(left: _Sum, right: _Sum) -> bool:
    """Whether both nests have the same steps."""
    return len(left.nest) == len(right.nest) and all(
        tvm_ffi.structural_equal(own.min, its.min)
        and tvm_ffi.structural_equal(own.extent, its.extent)
        for own, its in zip(left.nest, right.nest)
    )


def _resolved(expr: ir.Expr, between: list[tirx.Stmt]) -> ir.Expr:
    """An expression, or the value that one of the statements has given it."""
    if not isinstance(expr, ir.TensorLoad):
        return expr
    stores = [s for s in nodes(between, tirx.BufferStore) if s.buffer.same_as(expr.source)]
    if len(stores) != 1 or not any(part.same_as(stores[0]) for part in between):
        return expr
    (store,) = stores
    return store.value if tvm_ffi.structural_equal(store.indices, expr.indices) else expr


def _is_mean(expr: ir.Expr, total: _Sum) -> bool:
    """Whether it is what has been added up over the number of numbers."""
    if not isinstance(expr, (tirx.Div, tirx.Mul)) or not isinstance(expr.b, tirx.FloatImm):
        return False
    number = float(expr.b.value)
    count = number if isinstance(expr, tirx.Div) else number and 1 / number
    eps = 2.0**-51 if str(expr.ty.dtype) == "float64" else 2.0**-22
    is_total = tvm_ffi.structural_equal(expr.a, total.total)
    return bool(is_total) and math.isclose(count, total.count, rel_tol=eps)


def _may_join(first: tirx.Stmt, between: list[tirx.Stmt], variance: _Variance) -> bool:
    """Whether the first loop finds all that the second reads, and nothing changes it meanwhile."""
    own, *effects = (Effects.of(part) for part in [first, *between])
    if not own.is_known or not all(effect.is_known for effect in effects):
        return False
    total, square = variance.total, variance.square.buffer
    loads = nodes(total.value, ir.TensorLoad)
    read = {total.buffer, *(load.source for load in loads)}
    if any(effect.writes.keys() & read for effect in effects) or own.indices(square):
        return False
    if len(own.indices(total.buffer)) != 2:  # to read and to store what has been added up
        return False
    if any(square in effect.writes and not effect.indices(square) for effect in effects):
        return False  # allocated only there
    stored = {store.buffer: store for store in _before(total)}
    # Such a number is stored at its own step, before it is read, and of what is there by then.
    return all(
        load.source in stored
        and len(own.writes[load.source]) == 1
        and tvm_ffi.structural_equal(stored[load.source].indices, load.indices)
        and all(any(i.same_as(loop.loop_var) for i in load.indices) for loop in total.nest)
        and not Effects.of(stored[load.source]).reads.keys() & own.writes.keys()
        for load in loads
        if load.source in own.writes
    )


def _before(total: _Sum) -> list[tirx.BufferStore]:
    """What the loop stores at each step before it adds to the sum."""
    place = next(n for n, store in enumerate(total.body) if store.same_as(total.store))
    return total.body[:place]


def _start(parts: list[tirx.Stmt], one: _Sum) -> tirx.BufferStore | None:
    """Which statement sets a sum to zero, where that is all that they do with it."""
    touching = [part for part in parts if Effects.of(part).indices(one.buffer)]
    if len(touching) != 1 or not isinstance(touching[0], tirx.BufferStore):
        return None
    (start,) = touching
    is_there = tvm_ffi.structural_equal(start.indices, one.store.indices)
    is_zero = isinstance(start.value, tirx.FloatImm) and float(start.value.value) == 0
    return start if is_there and is_zero else None


def _one_pass(variance: _Variance) -> list[tirx.Stmt]:
    """Both sums, by one pass about a centre of its own, or else by the two."""
    total, square = variance.total, variance.square
    buffer = tirx.decl_buffer((1,), str(total.value.ty.dtype), "centre")
    place = [tirx.const(0, "int64")]
    centre = tirx.BufferLoad(buffer, place)
    distance, deviation = variance.number - centre, variance.number - variance.mean
    body: list[tirx.Stmt] = []
    for store in total.body:
        if store.same_as(total.store):
            body.append(total.set(total.total + distance))
            body.append(square.set(square.total + distance * distance))
        else:
            body.append(store)
    drift = total.total * total.total * total.const(1 / total.count)
    moved = centre if variance.centre is None else centre - variance.centre
    again = [
        total.set(total.const(0)),
        total.loop([total.store]),
        square.set(square.const(0)),
        total.loop([square.set(square.total + deviation * deviation)]),
    ]
    return [
        tirx.AllocBuffer(buffer),
        tirx.BufferStore(buffer, total.const(0), place),
        *_mean_of_first(variance, buffer, place),
        total.loop(body),
        square.set(square.total - drift),
        tirx.IfThenElse(  # not if one of them is no number
            drift <= square.total * total.const(_NEAR),
            total.set(total.total + moved * total.const(total.count)),
            sequence(again),
        ),
    ]


def _mean_of_first(variance: _Variance, buffer: tirx.Var, place: list[ir.Expr]) -> list[tirx.Stmt]:
    """Add up the first numbers, before the loop that may store what they are read from."""
    total = variance.total
    *outer, inner = total.nest
    stored = {store.buffer: store.value for store in _before(total)}

    def load(node: ir.TensorLoad) -> ir.Expr:
        return stored.get(node.source, node)

    number = tvm_ffi.structural_map(variance.number, (ir.TensorLoad, load))
    for loop in outer:
        number = at_step(number, loop.loop_var, loop.min)
    dtype = inner.loop_var.ty.dtype
    step = tirx.Var("first", dtype)
    number = at_step(number, inner.loop_var, inner.min + step)
    count = min(_FIRST, int(inner.extent))
    sum_so_far = tirx.BufferLoad(buffer, place)
    add = tirx.BufferStore(buffer, sum_so_far + number, place)
    zero, extent = tirx.const(0, dtype), tirx.const(count, dtype)
    return [
        tirx.For(step, zero, extent, tirx.ForKind.SERIAL, add),
        tirx.BufferStore(buffer, sum_so_far * total.const(1 / count), place),
    ]
