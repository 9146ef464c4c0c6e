"""Where a kernel's elements are in memory, and what of it a vector of them needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.gpu.extents import Axis, is_multiple, product
from babytriton.passes.gpu.writing import number
from babytriton.passes.intrinsics import function_name
from babytriton.passes.nests import at_zero
from babytriton.passes.statements import at_step


@dataclass(frozen=True)
class Window:
    """Numbers that lie together, among which those are that a vector's elements read.

    Attributes:
        first: the position of the first of them, as an element's position that is the vector's
            first one.
        count: how many there are.
        lane: a variable for the number of an element in the vector.
        place: by this, which of them the element reads.
    """

    first: ir.Expr
    count: int
    lane: tirx.Var
    place: ir.Expr

    def of(self, lane: ir.Expr) -> ir.Expr:
        """Which of them an element of the vector reads."""
        return at_step(self.place, self.lane, lane)


@dataclass(frozen=True)
class Access:
    """Where a load or a store is.

    Attributes:
        buffer: what is accessed.
        place: the row-major position, by the program's axes.
        base: the position of a row's first element, if the others follow it without gaps.
        moves: whether it goes on from element to element, within the last axis at least.
        is_own: whether it is at the place of the element that is computed.
        jumps: whether elements are elsewhere than one behind the other, or all in one place.
    """

    buffer: tirx.Var
    place: ir.Expr
    base: ir.Expr | None
    moves: bool
    is_own: bool = True
    jumps: bool = False

    @property
    def name(self) -> str:
        """What registers that hold it are called, but for an ending."""
        return str(self.buffer.name) if self.is_own else f"{self.buffer.name}_other"

    def fits(self, width: int, last: Axis) -> bool:
        """Whether so many elements from any multiple of so many on are a vector in memory.

        Or among the numbers of one that is not much longer, or all the same one.

        Args:
            width: how many.
            last: the last axis of the program's elements.
        """
        variable, extent = last
        if self.base is None and not (isinstance(extent, int) and extent % width == 0):
            return False
        if self.jumps:
            return self.window(width, last) is not None
        if width == 1 or not self.moves:
            return True
        first = at_zero(self.place, [variable]) if self.base is None else self.base
        return is_multiple(first, width)

    def is_same(self, other: Access) -> bool:
        """Whether it is one place for both."""
        return self.buffer.same_as(other.buffer) and bool(
            tvm_ffi.structural_equal(self.place, other.place)
        )

    def window(self, width: int, last: Axis) -> Window | None:
        """The numbers that a vector of elements is among; None where these lie too far apart."""
        variable, extent = last
        assert isinstance(extent, int)
        vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
        analyzer = sym.Analyzer()
        analyzer.bind(vector, ir.Range(number(0), number(extent // width)))
        analyzer.bind(lane, ir.Range(number(0), number(width)))
        place = at_step(with_names(self.place), variable, vector * number(width) + lane)
        start = analyzer.simplify(at_step(place, lane, number(0)))
        apart = analyzer.simplify(place - start)
        if not all(var.same_as(lane) for var in nodes(apart, ir.Var)):
            return None
        steps = [int(analyzer.simplify(at_step(apart, lane, number(n)))) for n in range(width)]
        low = min(steps)
        count = _aligned(analyzer, self.buffer, start + low, max(steps) - low, 2 * width)
        if count is None:
            return None
        before = int(analyzer.modular_set(start + low).base) % count
        first = sym.Analyzer().simplify(self.place + (low - before))
        return Window(first, count, lane, analyzer.simplify(apart + (before - low)))


def _aligned(
    analyzer: sym.Analyzer, buffer: tirx.Var, first: ir.Expr, span: int, most: int
) -> int | None:
    """How many numbers, at an address that is a multiple of these, some are among.

    Args:
        analyzer: knows the variables.
        buffer: has the numbers.
        first: the position of the first that is needed.
        span: how much farther the last one is.
        most: numbers that may be loaded.
    """
    place = analyzer.modular_set(first)
    size = analyzer.modular_set(tirx.const(0, "int64") + product(_sizes(buffer)))
    count = 1
    while count <= most:
        sets = [place, size] if count > 1 else []
        if any(int(each.coeff) % count for each in sets) or int(size.base) % count:
            return None
        if int(place.base) % count + span < count:
            return count
        count *= 2
    return None


def _sizes(buffer: tirx.Var) -> Sequence[int | ir.Expr]:
    return [int(n) if isinstance(n, tirx.IntImm) else n for n in buffer.shape]


def loads_made(
    expr: ir.Expr, chooses_both: Callable[[ir.Expr], bool] = lambda _: False
) -> list[ir.TensorLoad]:
    """The loads of an expression that no condition keeps from being made.

    Args:
        expr: any.
        chooses_both: whether a test has both answers wherever it is made.
    """
    found: list[ir.TensorLoad] = []

    def of_call(call: ir.Call) -> tvm_ffi.WalkResult | None:
        if function_name(call) != "if_then_else":
            return None
        test, *sides = call.args
        for part in (test, *(sides if chooses_both(test) else ())):
            found.extend(loads_made(part, chooses_both))
        return tvm_ffi.WalkResult.SKIP

    def of_either(test: tirx.And | tirx.Or) -> tvm_ffi.WalkResult:
        found.extend(loads_made(test.a, chooses_both))
        return tvm_ffi.WalkResult.SKIP

    entries = [(ir.Call, of_call), (ir.TensorLoad, found.append)]
    entries += [(tirx.And, of_either), (tirx.Or, of_either)]
    tvm_ffi.structural_walk(expr, entries, order="pre")
    return found


def is_of_lanes(test: ir.Expr, last: Axis, width: int) -> bool:
    """Whether a test asks an element of a vector for nothing but its number in that.

    Args:
        test: any.
        last: the last axis of the elements.
        width: of vectors, of which the first element is any multiple of so many.
    """
    variable, extent = last
    if width == 1 or not isinstance(extent, int) or extent % width:
        return False
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range(number(0), number(width)))
    found = analyzer.simplify(at_step(test, variable, vector * number(width) + lane))
    return all(var.same_as(lane) for var in nodes(found, ir.Var))


def is_inside(load: ir.TensorLoad, axes: Sequence[Axis]) -> bool:
    """Whether a load is in its tensor wherever the axes are."""
    analyzer = sym.Analyzer()
    for variable, extent in axes:
        if isinstance(extent, int):
            analyzer.bind(variable, ir.Range(number(0), number(extent)))
    return all(
        analyzer.can_prove(tirx.all(index >= 0, index < size))
        for index, size in zip(load.indices, load.source.shape)
    )


def with_names(place: ir.Expr) -> ir.Expr:
    """A place with a name for each number in it that is read from memory."""
    known: list[tuple[ir.TensorLoad, tirx.Var]] = []

    def name(load: ir.TensorLoad) -> tirx.Var:
        for other, var in known:
            if tvm_ffi.structural_equal(load, other):
                return var
        known.append((load, tirx.Var(load.source.name, load.ty)))
        return known[-1][1]

    return tvm_ffi.structural_map(place, (ir.TensorLoad, name))
