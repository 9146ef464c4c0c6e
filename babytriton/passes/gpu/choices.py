"""Values that depend on where they are, as those of a tensor that is put together from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm_ffi
from tvm import ir, sym, tirx
from tvm_ffi import StructuralKey

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.gpu.accesses import loads_made
from babytriton.passes.gpu.extents import Axis
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writing import number
from babytriton.passes.intrinsics import function_name
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


def with_names(
    block: Block, last: Axis, width: int
) -> tuple[Block, list[tuple[tirx.Var, ir.Expr]]]:
    """A block whose choices are by names, where all elements of a vector choose the same.

    Args:
        block: of a program.
        last: the last axis of the program's elements.
        width: elements of a vector, of which the first is any multiple of so many.

    Returns:
        The block, and the tests by their names.
    """
    names: dict[StructuralKey, tirx.Var] = {}
    tests: list[tuple[tirx.Var, ir.Expr]] = []

    def named(expr: ir.Expr, is_inside: bool) -> ir.Expr:
        for call in _choices(expr):
            test, *sides = call.args
            # What a test reads may be there only where another one holds.
            if _is_one_test(test, last, width) and not (is_inside and nodes(test, ir.TensorLoad)):
                name = names.get(StructuralKey(test))
                if name is None:
                    name = names[StructuralKey(test)] = tirx.Var(_name(*sides), "bool")
                    tests.append((name, _with_numbers_moved(test)))
                made = tirx.if_then_else(name, *(named(side, True) for side in sides))
                expr = _replaced(expr, call, made)
        return expr

    return block.with_value(named(block.value, False)), tests


def with_loads_chosen(
    block: Block, load: Callable[[ir.Call, ir.Expr | None], ir.Expr | None]
) -> Block:
    """A block that chooses, by name, between numbers from memory before it computes with one.

    Args:
        block: of a program.
        load: what is read where there is a choice between loads alone, and what must hold for it,
            if anything does; None if it is not read so.
    """

    def chosen(expr: ir.Expr, test: ir.Expr | None) -> ir.Expr:
        for call in _choices(expr):
            name, *sides = call.args
            if not isinstance(name, tirx.Var):
                continue
            made = load(call, test) if loads_chosen(call) else None
            if made is None:
                ways = zip(sides, _answers(name, test))
                made = tirx.if_then_else(name, *(chosen(*way) for way in ways))
            expr = _replaced(expr, call, made)
        return expr

    return block.with_value(chosen(block.value, None))


def loads_chosen(expr: ir.Expr) -> list[ir.TensorLoad]:
    """What named choices choose from, if these are loads alone."""
    if isinstance(expr, ir.TensorLoad):
        return [expr]
    if not _is_choice(expr) or not isinstance(expr.args[0], tirx.Var):
        return []
    yes, no = map(loads_chosen, expr.args[1:])
    return [*yes, *no] if yes and no else []


def _answers(name: tirx.Var, test: ir.Expr | None) -> tuple[ir.Expr, ir.Expr]:
    """What holds on both sides of a choice, where something holds already."""
    ways = name, tirx.Not(name)
    return ways if test is None else tuple(tirx.And(test, way) for way in ways)


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
    if not nodes(no, ir.TensorLoad):
        return "_".join(["has", *(load.source.name for load in nodes(yes, ir.TensorLoad)[:1])])
    if not nodes(yes, ir.TensorLoad):
        return f"lacks_{nodes(no, ir.TensorLoad)[0].source.name}"
    return "is_first"


def _replaced(expr: ir.Expr, old: ir.Call, new: ir.Expr) -> ir.Expr:
    return tvm_ffi.structural_map(
        expr, (ir.Call, lambda call: new if tvm_ffi.structural_equal(call, old) else call)
    )


def loads_by_test(block: Block) -> list[tuple[ir.TensorLoad, ir.Expr]]:
    """What a block loads where named tests hold, or do not, each with what must hold for it."""
    return [*_by_test(block.value, None)]


def _by_test(expr: ir.Expr, test: ir.Expr | None) -> Iterator[tuple[ir.TensorLoad, ir.Expr]]:
    if test is not None:
        yield from ((load, test) for load in loads_made(expr))
    for call in _choices(expr):
        name, *sides = call.args
        if isinstance(name, tirx.Var):
            for side, holds in zip(sides, _answers(name, test)):
                yield from _by_test(side, holds)


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
