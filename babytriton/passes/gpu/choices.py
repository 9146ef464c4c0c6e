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
    block: Block, load: Callable[[ir.Call, list[ir.TensorLoad]], ir.Expr | None]
) -> Block:
    """A block that chooses, by name, between numbers from memory before it computes with one.

    Args:
        block: of a program.
        load: what is read where there are these choices between these loads; None if it is not.
    """

    def chosen(call: ir.Call) -> ir.Expr:
        loads = _leaves(call)
        found = load(call, loads) if loads else None
        return call if found is None else found

    value = tvm_ffi.structural_map(block.value, (ir.Call, chosen), order="pre")
    return block.with_value(value)


def _leaves(expr: ir.Expr) -> list[ir.TensorLoad]:
    """What named choices choose from, if these are loads alone."""
    if isinstance(expr, ir.TensorLoad):
        return [expr]
    if not _is_choice(expr) or not isinstance(expr.args[0], tirx.Var):
        return []
    yes, no = map(_leaves, expr.args[1:])
    return [*yes, *no] if yes and no else []


def _with_numbers_moved(test: ir.Expr) -> ir.Expr:
    """A test of places that adds no number to what it compares with one."""

    def moved(own: tirx.LT | tirx.LE) -> tirx.PrimExpr:
        a, b = own.a, own.b
        if nodes(own, ir.TensorLoad):
            return own  # which may be at the end of its type
        if isinstance(a, tirx.Add) and isinstance(a.b, tirx.IntImm) and isinstance(b, tirx.IntImm):
            return type(own)(a.a, tirx.IntImm(b.ty.dtype, int(b) - int(a.b)))
        if isinstance(b, tirx.Add) and isinstance(b.b, tirx.IntImm) and isinstance(a, tirx.IntImm):
            return type(own)(tirx.IntImm(a.ty.dtype, int(a) - int(b.b)), b.a)
        return own

    return tvm_ffi.structural_map(test, [(kind, moved) for kind in _COMPARISONS])


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
            for side, holds in zip(sides, (name, tirx.Not(name))):
                yield from _by_test(side, holds if test is None else tirx.And(test, holds))


def _choices(expr: ir.Expr) -> list[ir.Call]:
    """The choices that no condition keeps from being made."""
    found: list[ir.Call] = []

    def of_call(call: ir.Call) -> tvm_ffi.WalkResult | None:
        if not _is_choice(call):
            return None
        found.append(call)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(expr, [(ir.Call, of_call)], order="pre")
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
