"""Values that depend on where they are, as those of a tensor that is put together from others."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.gpu.extents import Axis
from babytriton.passes.gpu.program import Block
from babytriton.passes.gpu.writing import number
from babytriton.passes.intrinsics import function_name
from babytriton.passes.statements import at_step

_CHOICE = "if_then_else"

_MOST = 8
"""Ways that a block may go, each of which is written out."""


def choice(
    block: Block, last: Axis, width: int, vectors: Callable[[Block], int]
) -> tuple[ir.Expr, Block, Block] | None:
    """What a block asks first of where it is, if all elements of a vector answer the same.

    Nothing where the answers lead to many ways, which would all be written out, or where none of
    them reads more in vectors.

    Args:
        block: of a program.
        last: the last axis of the program's elements.
        width: elements of a vector, of which the first is any multiple of so many.
        vectors: how many vectors a block reads.

    Returns:
        The test, and the block where it holds and where it does not; None without one.
    """
    found = _first(block, last, width)
    if found is None:
        return None
    ways = _ways(block, last, width)
    before = vectors(block)
    gains = any(vectors(way) > before for way in ways)
    return found if gains and len(ways) <= _MOST else None


def _first(block: Block, last: Axis, width: int) -> tuple[ir.Expr, Block, Block] | None:
    """The test that decides most, with the block where it holds and where it does not."""
    variable, extent = last
    if width == 1 or not (isinstance(extent, int) and extent % width == 0):
        return None
    tests: list[ir.Expr] = []

    def of_call(call: ir.Call) -> tvm_ffi.WalkResult | None:
        if function_name(call) != _CHOICE:
            return None
        if _is_same_along(call.args[0], variable, width):
            tests.append(call.args[0])
        # What is asked inside is not asked of all elements, or later.
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(block.value, [(ir.Call, of_call)], order="pre")
    if not tests:
        return None
    yes, no = (block.with_value(_decided(block.value, tests[0], side)) for side in (1, 2))
    return tests[0], yes, no


def _ways(block: Block, last: Axis, width: int, most: int = _MOST) -> list[Block]:
    """The ways in which a block is written out; one more than so many stand for all others."""
    found = _first(block, last, width) if most else None
    if found is None:
        return [block]
    _, yes, no = found
    ways = _ways(yes, last, width, most - 1)
    return ways if len(ways) > most else ways + _ways(no, last, width, most - len(ways))


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


def _decided(value: ir.Expr, test: ir.Expr, side: int) -> ir.Expr:
    """A value where a test has an answer: 1 where it holds, and 2 where it does not."""

    def chosen(call: ir.Call) -> ir.Expr:
        is_same = function_name(call) == _CHOICE and tvm_ffi.structural_equal(call.args[0], test)
        return call.args[side] if is_same else call

    return tvm_ffi.structural_map(value, (ir.Call, chosen))
