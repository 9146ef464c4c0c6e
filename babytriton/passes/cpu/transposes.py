"""Transposes on the CPU: squares of numbers that turn over in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import same_extents, uses
from babytriton.passes.cpu.caches import LINE
from babytriton.passes.cpu.lanes import moves_by_one
from babytriton.passes.statements import (
    at_step,
    conjuncts,
    is_number,
    renamed,
    sequence,
    statements,
    with_parts,
)

# Squares of a task, along both axes: the lines that it reads and writes stay in the first cache.
SQUARES = 4

# A vector register of AVX2. Squares in those of AVX-512 were no faster.
_VECTOR = 32


def transposed_axis(sch: s_tir.Schedule, info: SBlockInfo) -> int | None:
    """An axis, not the last, that is the last of something the block reads along the last one."""
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    last = [
        load.indices[-1]
        for load in nodes(block.body.value, ir.TensorLoad)
        if any(uses(index, variables[-1]) for index in list(load.indices)[:-1])
    ]
    axes = [
        axis for axis, var in enumerate(variables[:-1]) if any(index.same_as(var) for index in last)
    ]
    return axes[-1] if axes else None


def tile_transpose(sch: s_tir.Schedule, info: SBlockInfo, across: int) -> s_tir.schedule.LoopRV:
    """Go through a transpose square by square; the loop over the squares' tasks is returned.

    What is read across the lines of results is turned over in a local of a square's size, which
    is then read along them.
    """
    block = info.block_rv
    loops = sch.get_loops(block)
    turned = _turned_reads(sch, info, across)
    others = [loop for n, loop in enumerate(loops[:-1]) if n != across]
    squares = [SQUARES if turned else 1] * 2
    for n, axis in enumerate((across, -1)):
        side = info.iters[axis].dom
        if isinstance(side, int):  # no more than there are
            squares[n] = min(squares[n], -(-side // LINE))
    rows, row, i = sch.split(loops[across], [None, squares[0], LINE])
    columns, column, j = sch.split(loops[-1], [None, squares[1], LINE])
    sch.reorder(*others, rows, columns, row, column, i, j)
    for read, place in turned:
        turn_over(sch, block, place, column, read)
    return sch.fuse(*others, rows, columns)


def turn_over(
    sch: s_tir.Schedule,
    block: s_tir.schedule.SBlockRV,
    place: int,
    square: s_tir.schedule.LoopRV,
    read: int = 0,
) -> None:
    """Have a block read squares of a tensor that are turned over.

    Args:
        sch: the kernel.
        block: reads along an axis of the tensor that is not the last.
        place: that axis.
        square: the loop over the squares.
        read: which of the block's reads it is.
    """
    copy = sch.cache_read(block, read, "local")
    sch.compute_at(copy, square)
    sch.transform_layout(copy, ("write", 0), _turned(place))


def _turned(place: int) -> Callable[..., list[ir.Expr]]:
    """The layout with an axis as the last, and the last in front of it."""

    def turned(*index: tirx.Var) -> list[ir.Expr]:
        return [*index[:place], *index[place + 1 : -1], index[-1], index[place]]

    return turned


def _turned_reads(sch: s_tir.Schedule, info: SBlockInfo, across: int) -> list[tuple[int, int]]:
    """The reads across the lines of results, and which of each one's axes goes along these.

    None of what has less than a square, none of truth values, and none of a part of a tensor, whose
    edges are others.
    """
    sides = [info.iters[axis].dom for axis in (across, -1)]
    if any(isinstance(side, int) and side < LINE for side in sides):
        return []
    block = sch.get(info.block_rv)
    variables = [it.var for it in block.iter_vars]
    found = []
    for n, read in enumerate(block.reads):
        indices = [rng.min for rng in read.region]
        if str(read.source.ty.dtype) == "bool":
            continue
        places = [i for i, index in enumerate(indices[:-1]) if index.same_as(variables[-1])]
        if len(places) != 1 or not indices[-1].same_as(variables[across]):
            continue
        sizes = read.source.shape[-1], read.source.shape[places[0]]
        if same_extents(sides, [int(n) if isinstance(n, tirx.IntImm) else n for n in sizes]):
            found.append((n, places[0]))
    return found


def in_registers(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with the squares that are turned over in it turned over in vectors."""
    return _in_registers(stmt, _Loops())


def _in_registers(stmt: tirx.Stmt, loops: _Loops) -> tirx.Stmt:
    """The same, within loops.

    Where a call may tell that there is less than a square, plain loops read that as it lies.
    """
    if isinstance(stmt, tirx.For):
        loops.enter(stmt)
        return with_parts(stmt, _in_registers(stmt.body, loops))
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    parts = statements(stmt)
    places = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    steps = [part for part in parts if not isinstance(part, tirx.AllocBuffer)]
    loops.made.update(place.buffer for place in places)
    known = [square for part in steps if (square := _Square.of(part)) is not None]
    found = {n: _Turn.of(square, loops) for n, square in enumerate(known)}
    turns = {n: turn for n, turn in found.items() if turn is not None}
    others = [square for n, square in enumerate(known) if n not in turns]
    fits = all(turn.fits(square, loops) for turn in turns.values() for square in others)
    if not turns or not fits or len(known) < len(steps):
        return sequence([_in_registers(part, loops) for part in parts])
    lanes = min(turn.lanes for turn in turns.values())
    body = sequence([turns.get(n, square).whole(lanes) for n, square in enumerate(known)])
    if room := [size >= LINE for turn in turns.values() for size in turn.sizes]:
        plain = sequence([part for n, part in enumerate(steps) if n not in turns])
        for turn in turns.values():
            plain = turn.taken_out(plain)
        body = tirx.IfThenElse(tirx.all(*room), body, renamed(plain))
    if tests := [test for square in known for test in square.tests]:
        body = tirx.IfThenElse(tirx.all(*tests), body, None)
    return sequence([*places, body])


class _Loops:
    """The loops around a statement."""

    def __init__(self) -> None:
        self.made: set[tirx.Var] = set()
        """The kernel's own memory that is there."""
        self._ranges = sym.Analyzer()
        self._extents: dict[ir.Expr, ir.Expr] = {}

    def enter(self, loop: tirx.For) -> None:
        """Take the statement in the loop."""
        self._ranges.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
        if is_number(loop.min, 0):
            self._extents[loop.loop_var] = loop.extent

    def is_same(self, left: ir.Expr | None, right: ir.Expr | None) -> bool:
        """Whether two numbers are the same at each step; None is the same as itself."""
        if left is None or right is None:
            return left is right
        # TVM does not see that a step is its own remainder where a call tells how many there are.
        rest = tvm_ffi.structural_map(left - right, (tirx.FloorMod, self._without_remainder))
        return bool(self._ranges.can_prove_equal(rest, 0))

    def _without_remainder(self, node: tirx.FloorMod) -> ir.Expr:
        extent = self._extents.get(node.a)
        is_step = extent is not None and tvm_ffi.structural_equal(node.b, extent)
        return node.a if is_step else node


@dataclass(frozen=True)
class _Square:
    """Two loops over a square that store elements.

    Attributes:
        outer: the loop across lines.
        inner: the loop along them.
        store: of a number.
        beyond: how far it goes over the edge, across lines and along them; 0 or less if it does
            not, and None if it never does.
        tests: what holds if any of the square is inside.
    """

    outer: tirx.For
    inner: tirx.For
    store: tirx.BufferStore
    beyond: tuple[ir.Expr | None, ir.Expr | None]
    tests: tuple[ir.Expr, ...]

    @classmethod
    def of(cls, outer: tirx.Stmt) -> _Square | None:
        """What a statement does, if it is that."""
        inner = outer.body if isinstance(outer, tirx.For) else None
        if not isinstance(inner, tirx.For):
            return None
        store, tests = inner.body, []
        if isinstance(store, tirx.IfThenElse) and store.else_case is None:
            store, tests = store.then_case, conjuncts(store.condition)
        if not isinstance(store, tirx.BufferStore):
            return None
        if any(load.source.same_as(store.buffer) for load in nodes(store.value, ir.TensorLoad)):
            return None
        for loop in (outer, inner):
            if loop.kind != tirx.ForKind.SERIAL or loop.step is not None:
                return None
            if is_number(loop.extent, LINE):
                continue
            if (rest := _rest(loop.extent)) is None:
                return None
            tests.append(tirx.LT(loop.loop_var, rest))
        beyond: dict[tirx.Var, ir.Expr] = {}
        for test in tests:
            used = [loop.loop_var for loop in (outer, inner) if uses(test, loop.loop_var)]
            if not used:
                continue
            if len(used) > 1 or used[0] in beyond or not isinstance(test, tirx.LT):
                return None
            if uses(test.b, used[0]) or not moves_by_one(test.a, used[0]):
                return None
            side = tirx.const(LINE, used[0].ty.dtype)
            beyond[used[0]] = at_step(test.a, used[0], side) - test.b
        for loop in (outer, inner):
            tests = at_step(tests, loop.loop_var, tirx.const(0, loop.loop_var.ty.dtype))
        edges = beyond.get(outer.loop_var), beyond.get(inner.loop_var)
        return cls(outer, inner, store, edges, tuple(tests))

    @property
    def inside(self) -> tirx.BufferStore:
        """The store in a square that goes over no edge: at the last place inside, if need be.

        What is stored twice is stored as it was.
        """
        places: dict[tirx.Var, ir.Expr] = {}
        for loop, beyond in zip((self.outer, self.inner), self.beyond):
            if beyond is not None:
                zero = tirx.const(0, beyond.ty.dtype)
                places[loop.loop_var] = loop.loop_var - tirx.Max(beyond, zero)

        def moved(expr: ir.Expr) -> ir.Expr:
            return tvm_ffi.structural_map(expr, (ir.Var, lambda var: places.get(var, var)))

        own: dict[tirx.Var, ir.TensorLoad] = {}  # of the square's local, by what stands for it

        def aside(load: ir.TensorLoad) -> ir.Expr:
            if not _is_local(load.source):
                return load
            var = tirx.Var("own", load.ty)
            own[var] = load
            return var

        store = self.store
        value = moved(tvm_ffi.structural_map(store.value, (ir.TensorLoad, aside)))
        value = tvm_ffi.structural_map(value, (ir.Var, lambda var: own.get(var, var)))
        indices = store.indices if _is_local(store.buffer) else [moved(i) for i in store.indices]
        return tirx.BufferStore(store.buffer, value, indices)

    def whole(self, lanes: int) -> tirx.Stmt:
        """All steps, in vectors of so many numbers along the lines.

        LLVM might unroll these, and gather and scatter across them.
        """
        variable = self.inner.loop_var
        vector, lane = (tirx.Var(name, variable.ty.dtype) for name in ("vector", "lane"))
        width = tirx.const(lanes, variable.ty.dtype)
        body = at_step(self.inside, variable, vector * width + lane)
        zero, kind = tirx.const(0, variable.ty.dtype), tirx.ForKind
        body = tirx.For(lane, zero, width, kind.VECTORIZED, body)
        count = tirx.const(LINE // lanes, variable.ty.dtype)
        body = tirx.For(vector, zero, count, kind.SERIAL, body)
        return with_parts(self.outer, body, tirx.const(LINE, variable.ty.dtype))


def _rest(extent: ir.Expr) -> ir.Expr | None:
    """What is left of lines of numbers, if a loop goes as far as that, but not over a square."""
    if not isinstance(extent, tirx.Max) or not is_number(extent.b, 0):
        return None
    steps = extent.a
    return steps.b if isinstance(steps, tirx.Min) and is_number(steps.a, LINE) else None


@dataclass(frozen=True)
class _Turn:
    """A square that is copied, and each line of which becomes a column.

    Attributes:
        square: that.
        sizes: of what is copied, where a call tells how far away the square's edges are.
        held: what the numbers are in registers. TVM has no variables of bfloat16, and makes float32
            of it in a kernel's own memory.
    """

    square: _Square
    sizes: tuple[ir.Expr, ...]
    held: str

    @classmethod
    def of(cls, square: _Square, loops: _Loops) -> _Turn | None:
        """What a step of the square does, if it is that."""
        copy, row, column = square.store, square.outer.loop_var, square.inner.loop_var
        load = copy.value
        if not isinstance(load, ir.TensorLoad) or len(copy.indices) < 2 or len(load.indices) < 2:
            return None
        simplify = sym.Analyzer().simplify
        *zeros, first, second = map(simplify, copy.indices)
        lines = [n for n, index in enumerate(load.indices[:-1]) if uses(index, row)]
        fits = (
            all(isinstance(index, tirx.IntImm) and int(index) == 0 for index in zeros)
            and first.same_as(column)
            and second.same_as(row)
            and len(lines) == 1
            and not any(uses(index, column) for index in load.indices[:-1])
            and not uses(load.indices[-1], row)
            and moves_by_one(load.indices[-1], column)
            and moves_by_one(load.indices[lines[0]], row)
        )
        if not fits:
            return None
        sizes = []
        for axis, variable, beyond in zip((lines[0], -1), (row, column), square.beyond):
            if beyond is None:
                continue
            size = load.source.shape[axis]
            end = at_step(load.indices[axis], variable, tirx.const(LINE, variable.ty.dtype))
            if not loops.is_same(end - size, beyond):
                return None
            if not isinstance(size, tirx.IntImm):
                sizes.append(size)
            elif int(size) < LINE:
                return None
        held = str(load.ty.dtype)
        if held == "bfloat16":
            held = "float32" if load.source in loops.made else "uint16"
        return cls(square, tuple(sizes), held)

    def fits(self, other: _Square, loops: _Loops) -> bool:
        """Whether both go over the same edges: else one would move, and the other would not."""
        return all(map(loops.is_same, self.square.beyond, reversed(other.beyond)))

    def taken_out(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """A statement that reads what is copied in the place of the copy."""
        copy, row, column = self.square.store, self.square.outer, self.square.inner

        def load(node: ir.TensorLoad) -> ir.TensorLoad:
            if not node.source.same_as(copy.buffer):
                return node
            *_, first, second = node.indices
            at = at_step(copy.value.indices, column.loop_var, first)
            return tirx.BufferLoad(copy.value.source, at_step(at, row.loop_var, second))

        return tvm_ffi.structural_map(stmt, (ir.TensorLoad, load))

    @property
    def lanes(self) -> int:
        """How many numbers a vector holds."""
        return int(min(_VECTOR * 8 // tvm.DataType(self.held).bits, LINE))

    def whole(self, lanes: int) -> tirx.Stmt:
        """The copy of all of the square, so many numbers of as many lines at a time."""
        row, column = self.square.outer.loop_var, self.square.inner.loop_var
        dtype = row.ty.dtype
        width = tirx.const(lanes, dtype)
        places = [tirx.Var(var.name, dtype) for var in (row, column)]
        body = sequence(self._part(places[0] * width, places[1] * width, lanes))
        zero, count = tirx.const(0, dtype), tirx.const(LINE // lanes, dtype)
        for place in reversed(places):
            body = tirx.For(place, zero, count, tirx.ForKind.SERIAL, body)
        return body

    def _part(self, row: ir.Expr, column: ir.Expr, size: int) -> list[tirx.Stmt]:
        """That of a smaller square, from a row and a column on."""
        bound = Values("line")
        copy, dtype = self.square.inside, row.ty.dtype
        load, lines = copy.value, []
        for n in range(size):
            at = at_step(load.indices, self.square.outer.loop_var, row + tirx.const(n, dtype))
            *leading, last = at_step(at, self.square.inner.loop_var, column)
            line = tirx.BufferLoad(load.source, [*leading, _ramp(last, size)])
            lines.append(_in_register(line, self.held, bound))
        lines = turned_over(lines, bound)
        done = bound.statements
        zeros = [tirx.const(0, dtype)] * (len(copy.indices) - 2)
        for n, line in enumerate(lines):
            at = [*zeros, column + tirx.const(n, dtype), _ramp(row, size)]
            number = _as_numbers(line, str(load.ty.dtype))
            done.append(tirx.BufferStore(copy.buffer, number, at))
        return done


class Values:
    """Values with names, in the order they are computed.

    Args:
        name: of all of them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.statements: list[tirx.Stmt] = []
        """What computes them."""

    def __call__(self, value: ir.Expr) -> ir.Expr:
        """A variable that has the value from now on."""
        var = tirx.Var(self._name, value.ty)
        self.statements.append(tirx.Bind(var, value))
        return var


def turned_over(lines: Sequence[ir.Expr], bound: Values) -> list[ir.Expr]:
    """The columns of as many lines as each of these vectors has numbers.

    Of each pair of lines that are 1, 2, 4, ... apart, those numbers change places whose columns are
    as far apart.

    Args:
        lines: vectors.
        bound: gets what is computed.
    """
    found, distance = list(lines), 1
    while distance < len(found):
        for n in range(len(found)):
            if n & distance == 0:
                pair = found[n], found[n + distance]
                for part in (0, distance):
                    found[n + part] = bound(picked(pair, _kept(len(found), distance, part)))
        distance *= 2
    return found


def _kept(size: int, distance: int, first: int) -> list[int]:
    """What one of two lines holds once it has exchanged numbers with the other.

    Args:
        size: of each line.
        distance: of the two.
        first: 0 for the upper one, the distance for the lower one.
    """
    return [n - (n & distance) + first + (size if n & distance else 0) for n in range(size)]


def picked(lines: Sequence[ir.Expr], places: Sequence[int]) -> ir.Expr:
    """Numbers of some vectors, one behind the other, by their places."""
    return tirx.Shuffle(list(lines), [tirx.const(place, "int32") for place in places])


def _in_register(line: ir.Expr, held: str, bound: Values) -> ir.Expr:
    """A line of numbers with a name, as what they are to be in registers.

    Where TVM widens memory it knows of stores, and not of the variables that are read from it.
    """
    numbers = _as_numbers(line, held)
    if not isinstance(numbers, tirx.Cast):
        return bound(numbers)
    size = numbers.ty.dtype.lanes
    room = tirx.decl_buffer((size,), held, "line", scope="local")
    place = [_ramp(tirx.const(0, "int64"), size)]
    bound.statements += [tirx.AllocBuffer(room), tirx.BufferStore(room, numbers, place)]
    return bound(tirx.BufferLoad(room, place))


def _as_numbers(line: ir.Expr, dtype: str) -> ir.Expr:
    """A vector as one of a dtype: with the same bits, or the same values in other floats."""
    own, _, lanes = str(line.ty.dtype).partition("x")
    if own == dtype:
        return line
    change = tirx.reinterpret if "uint16" in (own, dtype) else tirx.Cast
    return change(f"{dtype}x{lanes}", line)


def _is_local(buffer: tirx.Var) -> bool:
    return str(buffer.ty.storage_scope) == "local"


def _ramp(base: ir.Expr, lanes: int) -> ir.Expr:
    return tirx.Ramp(base, tirx.const(1, base.ty.dtype), lanes)
