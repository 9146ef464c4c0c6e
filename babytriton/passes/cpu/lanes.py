"""Float reductions in vector lanes: LLVM may not reorder sums of floats, so they are put in order.

A loop `s = s + f(k)` becomes one over vectors, each lane of which sums up its own part, then a
loop over shorter vectors for what is left, then one over single numbers; the lanes are added up in
pairs at the end. The number of lanes is not the machine's, so results do not depend on that.

A long sum in float64 of numbers in float32 is one in float32 as far as that loses no more digits
than a short sum would: in half the vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import DataType, ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.cpu.caches import LINE_BYTES
from babytriton.passes.intrinsics import FLOAT_FUNCTIONS, function_name
from babytriton.passes.nests import offset
from babytriton.passes.statements import at_step, is_number, sequence, statements, with_parts

# Enough sums side by side to hide an addition's latency: eight vectors of AVX2, four of AVX-512.
LANES = 64
# Where a math function is computed on the way, its values need registers, as do float64's sums.
FEW_LANES = 32
# Of the shorter vectors.
SHORT = 8
# Numbers a lane adds up in float32 before float64 takes the sum.
STEPS = 64
# So many sums in one loop hide an addition's latency by themselves: each has as many lanes as fill
# a line. Fewer share the lanes of one.
MANY = 8

# How far apart what is added up may lie, besides side by side: backwards, and with gaps.
STRIDES = (-1, 2, -2, 3, -3, 4, -4)

# What combines partial results.
_COMBINES = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)

# What indices consist of that schedules make.
_ARITHMETIC = (
    *(ir.Var, tirx.IntImm, tirx.Add, tirx.Sub, tirx.Mul),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Min),
)


@dataclass(frozen=True)
class _Accumulation:
    """A store `buffer[indices] = combine(buffer[indices], value)`."""

    store: tirx.BufferStore
    combine: type
    value: ir.Expr

    @property
    def buffer(self) -> tirx.Var:
        return self.store.buffer

    @property
    def dtype(self) -> str:
        return str(self.value.ty.dtype)

    @property
    def narrow(self) -> _Accumulation | None:
        """The sum in float32, where that is what is added up in float64."""
        value = self.value
        is_wide = self.combine is tirx.Add and self.dtype == "float64"
        if not is_wide or not isinstance(value, tirx.Cast):
            return None
        is_narrow = str(value.value.ty.dtype) == "float32"
        return replace(self, value=value.value) if is_narrow else None

    def start(self) -> ir.Expr:
        """What leaves any result as it is."""
        if self.combine in (tirx.Add, tirx.Mul):
            return tirx.const(int(self.combine is tirx.Mul), self.dtype)
        is_max = self.combine is tirx.Max
        if self.dtype.startswith("float"):
            return tirx.const(-math.inf if is_max else math.inf, self.dtype)
        return tirx.min_value(self.dtype) if is_max else tirx.max_value(self.dtype)


def _accumulation(store: tirx.BufferStore, variable: tirx.Var) -> _Accumulation | None:
    """How a store in a loop accumulates in one place; None if it does not."""
    value = store.value
    if type(value) not in _COMBINES or any(uses(index, variable) for index in store.indices):
        return None
    for own, other in ((value.a, value.b), (value.b, value.a)):
        is_own = (
            isinstance(own, ir.TensorLoad)
            and own.source.same_as(store.buffer)
            and tvm_ffi.structural_equal(own.indices, store.indices)
        )
        if is_own and not _reads(other, [store.buffer]):
            return _Accumulation(store, type(value), other)
    return None


def _reads(expr: ir.Expr, buffers: list[tirx.Var]) -> bool:
    loads = nodes(expr, ir.TensorLoad)
    return any(load.source.same_as(buffer) for load in loads for buffer in buffers)


def _accumulations(loop: tirx.For, strides: tuple[int, ...] = ()) -> list[_Accumulation] | None:
    """Those in the body, all else of which stores elements one beside the other; else None.

    A step reads of what the loop stores no other elements than its own: then any number of steps
    can be taken at once, a statement after the other.

    Args:
        loop: any.
        strides: how far apart reads may be, too.
    """
    body = statements(loop.body)
    if not all(isinstance(stmt, tirx.BufferStore) for stmt in body) or nodes(body, tirx.Let):
        return None
    found = [_accumulation(store, loop.loop_var) for store in body]
    elements = [store for store, one in zip(body, found) if one is None]
    sums = [one for one in found if one is not None]
    sources = [store.value for store in elements] + [one.value for one in sums]
    places = [one.buffer for one in sums]
    if not _are_apart(sums) or any(_reads(source, places) for source in sources):
        return None
    loads = [load for source in sources for load in nodes(source, ir.TensorLoad)]
    stored: dict[tirx.Var, list[ir.Expr]] = {}
    for store in elements:
        place = stored.setdefault(store.buffer, store.indices)
        moves = any(uses(index, loop.loop_var) for index in store.indices)
        if store.buffer in places or not moves or not _is_same(place, store.indices):
            return None
        if not _is_beside(store.buffer, store.indices, loop.loop_var):
            return None
    for load in loads:
        if not _is_same(stored.get(load.source, load.indices), load.indices):
            return None
    is_near = [
        _is_beside(load.source, load.indices, loop.loop_var)
        or any(_moves_by(stride, load, loop.loop_var) for stride in strides)
        for load in loads
    ]
    return sums if all(is_near) else None


def _are_apart(sums: list[_Accumulation]) -> bool:
    """Whether all accumulate in other places."""
    simplify = sym.Analyzer().simplify
    first: dict[tirx.Var, ir.Expr] = {}
    places = []
    for one in sums:
        place = offset(one.buffer, list(one.store.indices))
        distance = simplify(place - first.setdefault(one.buffer, place))
        if not isinstance(distance, tirx.IntImm):
            return False
        places.append((one.buffer, int(distance)))
    return len(set(places)) == len(places)


def _is_same(left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> bool:
    return bool(tvm_ffi.structural_equal(left, right))


def _is_beside(buffer: tirx.Var, indices: list[ir.Expr], variable: tirx.Var) -> bool:
    """Whether each step of a loop accesses the element after that of the step before.

    Or, for a read, the same element at all steps.
    """
    if not any(uses(index, variable) for index in indices):
        return True
    return moves_by_one(offset(buffer, list(indices)), variable)


def moves_by_one(index: ir.Expr, variable: tirx.Var) -> bool:
    """Whether the index is the variable and something that does not depend on it."""
    return index.same_as(variable) or _moves(index, variable, 1)


def _moves_by(stride: int, load: ir.TensorLoad, variable: tirx.Var) -> bool:
    """Whether each step of a loop reads an element so far from that of the step before."""
    return _moves(offset(load.source, list(load.indices)), variable, stride)


def _moves(index: ir.Expr, variable: tirx.Var, stride: int) -> bool:
    if not uses(index, variable) or not is_arithmetic(index):
        return False
    return not uses(sym.Analyzer().simplify(index - variable * stride), variable)


def is_arithmetic(index: ir.Expr) -> bool:
    """Whether an index is computed by nothing but what TVM can simplify fast.

    It takes minutes for one that is computed with many conditions.
    """
    return all(type(node) in _ARITHMETIC for node in nodes(index, ir.Expr))


def vectorizes(loop: tirx.For) -> bool:
    """Whether a loop of stores becomes vector code: by LLVM, or here where it adds up floats."""
    return _accumulations(loop) is not None


def is_elementwise(loop: tirx.For) -> bool:
    """Whether a loop only stores elements, one beside the other, that other steps do not read."""
    return _accumulations(loop) == []


def adds_up(loop: tirx.For) -> bool:
    """Whether a loop only adds up floats, in a way that lanes can take part of."""
    found = _accumulations(loop) or []
    are_sums = all(one.combine is tirx.Add and one.dtype.startswith("float") for one in found)
    return bool(found) and are_sums and len(found) == len(statements(loop.body))


def in_lanes(stmt: tirx.Stmt, long_sums: frozenset[tirx.Var] = frozenset()) -> tirx.Stmt:
    """The statement with its loops that accumulate floats in vector lanes.

    Args:
        stmt: any.
        long_sums: what sums are in that are in float64 only for being long.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([in_lanes(part, long_sums) for part in statements(stmt)])
    if isinstance(stmt, tirx.IfThenElse):
        cases = [case and in_lanes(case, long_sums) for case in (stmt.then_case, stmt.else_case)]
        return tirx.IfThenElse(stmt.condition, *cases)
    if not isinstance(stmt, tirx.For):
        return stmt
    nest = _nest(stmt)
    sums = _accumulations(nest[-1], STRIDES)
    if sums and _is_worthwhile(nest, sums):
        return _laned(nest, sums, long_sums)
    return with_parts(stmt, in_lanes(stmt.body, long_sums))


def _nest(loop: tirx.For) -> list[tirx.For]:
    """The loop and those in it that have nothing beside them."""
    nest = [loop]
    while isinstance(nest[-1].body, tirx.For):
        nest.append(nest[-1].body)
    return nest


def _is_worthwhile(nest: list[tirx.For], sums: list[_Accumulation]) -> bool:
    extent = nest[-1].extent
    return (
        all(loop.kind == tirx.ForKind.SERIAL for loop in nest)
        and (not isinstance(extent, tirx.IntImm) or int(extent) >= 2 * SHORT)
        and any(one.dtype.startswith("float") for one in sums)
        # The lanes are added up once, after the whole nest.
        and not any(
            uses(i, loop.loop_var) for one in sums for i in one.store.indices for loop in nest
        )
    )


class _Lanes:
    """Partial results side by side, a buffer for each of some accumulations."""

    def __init__(self, sums: list[_Accumulation], width: int) -> None:
        self.width = width
        self._sums = sums
        self._buffers = [
            tirx.decl_buffer((width,), one.dtype, f"{one.buffer.name}_lanes") for one in sums
        ]

    def room(self) -> list[tirx.Stmt]:
        """Room for them."""
        return list(map(tirx.AllocBuffer, self._buffers))

    def start(self) -> tirx.Stmt:
        """Fill them with what leaves any result as it is."""

        def clear(lane: tirx.Var) -> list[tirx.Stmt]:
            return [
                tirx.BufferStore(buffer, one.start(), [lane])
                for one, buffer in zip(self._sums, self._buffers)
            ]

        return _vector(self.width, clear)

    def load(self, lane: ir.Expr) -> list[ir.Expr]:
        """The partial results of a lane."""
        return [tirx.BufferLoad(buffer, [lane]) for buffer in self._buffers]

    def add(self, lane: ir.Expr, values: list[ir.Expr]) -> list[tirx.Stmt]:
        """Combine a lane's partial results with further values, of these or narrower dtypes."""
        return [
            tirx.BufferStore(buffer, one.combine(own, value.astype(one.dtype)), [lane])
            for one, buffer, own, value in zip(self._sums, self._buffers, self.load(lane), values)
        ]

    def strip(self, loop: tirx.For, start: ir.Expr, count: ir.Expr) -> tirx.Stmt:
        """A number of the loop's steps, `width` at a time."""
        dtype = loop.loop_var.ty.dtype
        first = tirx.Var(loop.loop_var.name, dtype)

        def step(lane: tirx.Var) -> list[tirx.Stmt]:
            at = start + first * tirx.const(self.width, dtype) + lane
            sums = iter(
                self.add(lane, [at_step(one.value, loop.loop_var, at) for one in self._sums])
            )
            stores = [one.store for one in self._sums]
            return [  # in the order of the body, which is that of the sums
                next(sums)
                if any(stmt.same_as(store) for store in stores)
                else at_step(stmt, loop.loop_var, at)
                for stmt in statements(loop.body)
            ]

        return _loop(first, count, _vector(self.width, step))

    def fold_into(self, other: _Lanes) -> tirx.Stmt:
        """Combine these results with those of fewer lanes."""
        parts = range(0, self.width, other.width)

        def fold(lane: tirx.Var) -> list[tirx.Stmt]:
            each = [self.load(lane + tirx.const(part, "int64")) for part in parts]
            return other.add(lane, self._in_pairs(each))

        return _vector(other.width, fold)

    def finish(self) -> list[tirx.Stmt]:
        """Combine the results with what the loop accumulates in."""
        each = [self.load(tirx.const(lane, "int64")) for lane in range(self.width)]
        return [
            tirx.BufferStore(
                one.buffer,
                one.combine(tirx.BufferLoad(one.buffer, one.store.indices), value),
                one.store.indices,
            )
            for one, value in zip(self._sums, self._in_pairs(each))
        ]

    def _in_pairs(self, each: list[list[ir.Expr]]) -> list[ir.Expr]:
        """Combine several lanes' results, each half with the other."""
        while len(each) > 1:
            half = len(each) // 2
            each = [
                [one.combine(a, b) for one, a, b in zip(self._sums, low, high)]
                for low, high in zip(each[:half], each[half:])
            ]
        return each[0]


def _laned(
    nest: list[tirx.For], sums: list[_Accumulation], long_sums: frozenset[tirx.Var]
) -> tirx.Stmt:
    """The nest with its innermost loop in lanes, which are combined after all of it."""
    *outer, inner = nest
    variable = inner.loop_var
    dtype = variable.ty.dtype
    simplify = sym.Analyzer().simplify
    found = [one.narrow for one in sums if one.buffer in long_sums]
    narrow = [one for one in found if one is not None]
    is_narrow = len(narrow) == len(sums)
    parts = narrow if is_narrow else sums
    long, short = _Lanes(parts, _width(inner, parts)), _Lanes(sums, SHORT)
    strips = simplify(tirx.floordiv(inner.extent, tirx.const(long.width, dtype)))
    covered = simplify(strips * tirx.const(long.width, dtype))
    rest = simplify(inner.extent - covered)
    short_strips = simplify(tirx.floordiv(rest, tirx.const(SHORT, dtype)))
    last = simplify(rest - short_strips * tirx.const(SHORT, dtype))

    body = [
        _in_steps(inner, strips, long, short) if is_narrow else long.strip(inner, inner.min, strips)
    ]
    if not is_number(short_strips, 0):
        body.append(short.strip(inner, simplify(inner.min + covered), short_strips))
    if not is_number(last, 0):
        single = tirx.Var(variable.name, dtype)
        start = simplify(inner.min + inner.extent - last)
        body.append(_loop(single, last, at_step(inner.body, variable, start + single)))
    whole = sequence(body)
    for loop in reversed(outer):
        whole = with_parts(loop, whole)
    before = [*long.room(), *([] if is_narrow else [long.start()]), *short.room(), short.start()]
    after = [*([] if is_narrow else [long.fold_into(short)]), *short.finish()]
    return tirx.SeqStmt([*before, whole, *after])


def _in_steps(loop: tirx.For, strips: ir.Expr, narrow: _Lanes, wide: _Lanes) -> tirx.Stmt:
    """A loop's strips, each few of which are summed up by themselves and then added to the rest."""
    dtype = loop.loop_var.ty.dtype
    simplify = sym.Analyzer().simplify
    block, steps = tirx.Var("block", dtype), tirx.const(STEPS, dtype)
    blocks = simplify(tirx.floordiv(strips + tirx.const(STEPS - 1, dtype), steps))
    start = loop.min + block * steps * tirx.const(narrow.width, dtype)
    own = simplify(tirx.Min(steps, strips - block * steps))
    part = [narrow.start(), narrow.strip(loop, start, own), narrow.fold_into(wide)]
    return _loop(block, blocks, sequence(part))


def lanes_of_many(dtype: str) -> int:
    """How many lanes each of many sums has."""
    return LINE_BYTES // (int(DataType(dtype).bits) // 8)


def _width(loop: tirx.For, sums: list[_Accumulation]) -> int:
    """How many partial results to keep."""
    if len(sums) >= MANY:
        return lanes_of_many(sums[0].dtype)
    has_functions = any(function_name(c) in FLOAT_FUNCTIONS for c in nodes(loop.body, ir.Call))
    is_wide = any(one.dtype == "float64" for one in sums)
    most = FEW_LANES if has_functions or is_wide else LANES
    while len(sums) > 1 and most * len(sums) > LANES:
        most //= 2
    if isinstance(loop.extent, tirx.IntImm):
        while most > int(loop.extent):
            most //= 2
    return most


def _loop(variable: tirx.Var, count: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    zero = tirx.const(0, variable.ty.dtype)
    return tirx.For(variable, zero, count, tirx.ForKind.SERIAL, body)


def _vector(width: int, body: Callable[[tirx.Var], list[tirx.Stmt]]) -> tirx.Stmt:
    """What a body does in each of so many lanes, as vector operations."""
    lane = tirx.Var("lane", "int64")
    extent = tirx.const(width, "int64")
    if width == 1:
        return sequence([at_step(stmt, lane, tirx.const(0, "int64")) for stmt in body(lane)])
    zero = tirx.const(0, "int64")
    return tirx.For(lane, zero, extent, tirx.ForKind.VECTORIZED, sequence(body(lane)))
