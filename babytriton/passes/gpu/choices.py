"""Values that depend on where they are, as those of a tensor that is put together from others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx
from tvm_ffi import StructuralKey

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.gpu.accesses import loads_made
from babytriton.passes.gpu.extents import Axis
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writing import number
from babytriton.passes.intrinsics import dtype_of, function_name
from babytriton.passes.statements import at_step

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def choice(
    block: Block, last: Axis, width: int, vectors: Callable[[Block], int]
) -> tuple[ir.Expr, Block, Block] | None:
    """What a block's value depends on first of all, if all elements of a vector answer the same.

    Nothing where neither of the values reads more in vectors.

    Args:
        block: of a program.
        last: the last axis of the program's elements.
        width: elements of a vector, of which the first is any multiple of so many.
        vectors: how many vectors a block reads in any case.

    Returns:
        The test, and the block where it holds and where it does not; None without one.
    """
    value = block.value
    if not _is_choice(value) or not _is_one_test(value.args[0], last, width):
        return None
    test, *sides = value.args
    ways = [block.with_value(side) for side in sides]
    gains = any(vectors(way) > vectors(block) or choice(way, last, width, vectors) for way in ways)
    return (test, *ways) if gains else None


def chooses_loads(
    expr: ir.Expr, last: Axis, width: int, is_vector: Callable[[ir.TensorLoad], bool]
) -> bool:
    """Whether a choice is one between loads alone, and the same for all elements of a vector.

    Args:
        expr: any.
        last: the last axis of the program's elements.
        width: elements of a vector, of which the first is any multiple of so many.
        is_vector: whether what a load reads for a vector lies one behind the other.
    """
    if isinstance(expr, ir.TensorLoad):
        return is_vector(expr)
    if not _is_choice(expr) or not _is_one_test(expr.args[0], last, width):
        return False
    return all(chooses_loads(side, last, width, is_vector) for side in expr.args[1:])


@dataclass(frozen=True)
class Naming:
    """A test gets a name, which does not hold where the test cannot be made, outside ``where``."""

    name: tirx.Var
    test: ir.Expr
    where: ir.Expr | None


@dataclass(frozen=True)
class Loading:
    """What is loaded where a test by name holds."""

    load: ir.TensorLoad
    where: ir.Expr


@dataclass(frozen=True)
class Choosing:
    """One of several loads is made, by the names of tests: ``value`` stands for what it gives."""

    value: tirx.Var
    choice: ir.Expr
    where: ir.Expr | None


Step = Naming | Loading | Choosing


def in_steps(
    block: Block, last: Axis, width: int, is_vector: Callable[[ir.TensorLoad], bool]
) -> tuple[ir.Expr, list[Step]]:
    """A block's value once it is known what its elements choose: all of a vector choose the same.

    Args:
        block: of a program.
        last: the last axis of the program's elements.
        width: elements of a vector, of which the first is any multiple of so many.
        is_vector: whether what a load reads for a vector lies one behind the other.

    Returns:
        The value, by names, and how these become known, besides what is loaded in any case.
    """
    steps = _Steps(last, width, is_vector)
    return steps.value(block.value, None), steps.found


class _Steps:
    """Finds the steps before values are computed.

    Args:
        last: the last axis of a program's elements.
        width: elements of a vector.
        is_vector: whether what a load reads for a vector lies one behind the other.
    """

    def __init__(self, last: Axis, width: int, is_vector: Callable[[ir.TensorLoad], bool]) -> None:
        self._last, self._width, self._is_vector = last, width, is_vector
        self._names: dict[StructuralKey, tirx.Var] = {}
        self.found: list[Step] = []

    def value(self, expr: ir.Expr, where: ir.Expr | None) -> ir.Expr:
        """An expression by names, once the steps before it are done, where something holds."""
        self._loads(expr, where)
        for call in _choices(expr):
            if chooses_loads(call, self._last, self._width, self._is_vector):
                made: ir.Expr = tirx.Var("chosen", dtype_of(call))
                self.found.append(Choosing(made, self._chain(call, where), where))
            elif _is_one_test(call.args[0], self._last, self._width):
                made = self._choice(call, where, self.value)
            else:
                continue
            expr = _replaced(expr, call, made)
        return expr

    def _chain(self, expr: ir.Expr, where: ir.Expr | None) -> ir.Expr:
        """Choices from loads alone, by names."""
        if isinstance(expr, ir.TensorLoad):
            return expr
        self._loads(expr.args[0], where)
        return self._choice(expr, where, self._chain)

    def _choice(
        self,
        call: ir.Call,
        where: ir.Expr | None,
        of_side: Callable[[ir.Expr, ir.Expr | None], ir.Expr],
    ) -> ir.Expr:
        """A choice by the name of its test, and what becomes of its sides."""
        test, *sides = call.args
        needed = where if nodes(test, ir.TensorLoad) else None
        key = StructuralKey([test] if needed is None else [test, needed])
        if key not in self._names:
            name = self._names[key] = tirx.Var(_name(*sides), "bool")
            self.found.append(Naming(name, _with_numbers_moved(test), needed))
        name = self._names[key]
        ways = [name, tirx.Not(name)]
        if where is not None:
            ways = [tirx.And(where, way) for way in ways]
        return tirx.if_then_else(name, *(of_side(*way) for way in zip(sides, ways)))

    def _loads(self, expr: ir.Expr, where: ir.Expr | None) -> None:
        if where is not None:
            self.found.extend(Loading(load, where) for load in loads_made(expr))


def _with_numbers_moved(test: ir.Expr) -> ir.Expr:
    """A test of places that adds no number to what it compares with one."""

    def moved(own: tirx.LT | tirx.LE) -> tirx.PrimExpr:
        sides = own.a, own.b
        # What is read may be at the end of its type.
        if nodes(own, ir.TensorLoad) or sum(isinstance(x, tirx.IntImm) for x in sides) != 1:
            return own
        (a, added), (b, beside) = map(_with_number_apart, sides)
        (number_,) = (x for x in sides if isinstance(x, tirx.IntImm))
        known = tirx.IntImm(number_.ty.dtype, int(number_) - added - beside)
        return type(own)(known, b) if number_.same_as(sides[0]) else type(own)(a, known)

    return tvm_ffi.structural_map(test, [(kind, moved) for kind in _COMPARISONS])


def _with_number_apart(expr: ir.Expr) -> tuple[ir.Expr, int]:
    """An expression without the number that is added to it last, and that number."""
    if isinstance(expr, tirx.Add) and isinstance(expr.b, tirx.IntImm):
        return expr.a, int(expr.b)
    if isinstance(expr, tirx.Sub) and isinstance(expr.b, tirx.IntImm):
        return expr.a, -int(expr.b)
    return expr, 0


def _name(yes: ir.Expr, no: ir.Expr) -> str:
    """What a test is called, by what is read where it holds and where it does not."""
    first, second = map(_read_first, (yes, no))
    if not second:
        return f"has_{first}" if first else "holds"
    return "is_first" if first else f"lacks_{second}"


def _read_first(expr: ir.Expr) -> str:
    """The name of what an expression reads first, but for tests; empty if it reads nothing."""
    if _is_choice(expr):
        return _read_first(expr.args[1]) or _read_first(expr.args[2])
    loads = loads_made(expr)
    if loads:
        return str(loads[0].source.name)
    return next(filter(None, map(_read_first, _choices(expr))), "")


def _replaced(expr: ir.Expr, old: ir.Call, new: ir.Expr) -> ir.Expr:
    return tvm_ffi.structural_map(
        expr, (ir.Call, lambda call: new if tvm_ffi.structural_equal(call, old) else call)
    )


def _choices(expr: ir.Expr) -> list[ir.Call]:
    """The choices that no condition keeps from being made, each once."""
    found: list[ir.Call] = []

    def of_call(call: ir.Call) -> tvm_ffi.WalkResult | None:
        if not _is_choice(call):
            return None
        if not any(tvm_ffi.structural_equal(call, other) for other in found):
            found.append(call)
        return tvm_ffi.WalkResult.SKIP

    def of_either(test: tirx.And | tirx.Or) -> tvm_ffi.WalkResult:
        found.extend(_choices(test.a))
        return tvm_ffi.WalkResult.SKIP

    entries = [(ir.Call, of_call), (tirx.And, of_either), (tirx.Or, of_either)]
    tvm_ffi.structural_walk(expr, entries, order="pre")
    return found


def _is_choice(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Call) and function_name(expr) == "if_then_else"


def _is_one_test(test: ir.Expr, last: Axis, width: int) -> bool:
    """Whether all elements of any vector answer a test the same."""
    variable, extent = last
    if width == 1 or not (isinstance(extent, int) and extent % width == 0):
        return False
    return _is_same_along(test, variable, width)


def _is_same_along(test: ir.Expr, variable: tirx.Var, width: int) -> bool:
    """Whether a test is about places, and numbers read there, the same for all of each vector."""
    if nodes(test, ir.Call) or any(uses(load, variable) for load in nodes(test, ir.TensorLoad)):
        return False
    test = tvm_ffi.structural_map(
        test, (ir.TensorLoad, lambda load: tirx.Var(load.source.name, load.ty))
    )
    vector, lane = (tirx.Var(name, variable.ty.dtype) for name in ("vector", "lane"))
    # As TVM sees through it.
    below = [(tirx.LE, lambda own: own.a < own.b + 1), (tirx.GT, lambda own: own.b < own.a)]
    test = tvm_ffi.structural_map(test, below)
    test = at_step(test, variable, vector * number(width) + lane)
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range(number(0), number(width)))
    return not uses(analyzer.simplify(test), lane)
