"""Loops whose index decides what they read, one for each range where it decides the same.

A tensor that is put together from others, or repeated, is stored by loops that ask at each step
where they are. Within a range there is nothing to ask: they copy, which is vector code.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.passes.blocks import nodes, uses
from babytriton.passes.intrinsics import function_name
from babytriton.passes.statements import at_step, sequence, statements, with_parts

# More loops than these take longer to compile than they save.
_MOST = 8


def in_ranges(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with its innermost loops by ranges."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([in_ranges(part) for part in statements(stmt)])
    if not isinstance(stmt, tirx.For):
        return stmt
    stores = all(isinstance(part, tirx.BufferStore) for part in statements(stmt.body))
    return _by_ranges(stmt) if stores else with_parts(stmt, in_ranges(stmt.body))


def _by_ranges(loop: tirx.For, most: int = _MOST) -> tirx.Stmt:
    """The loop as no more than so many, which may decide what others ask."""
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    is_known = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)
    if loop.kind not in kinds or loop.annotations or not is_known or loop.step is not None:
        return loop
    first, end = int(loop.min), int(loop.min) + int(loop.extent)
    inside = sorted({place for place in _turns(loop) if first < place < end})
    bounds = [first, *inside, end]
    parts = len(bounds) - 1
    if not 1 < parts <= most:
        return loop
    return sequence([_by_ranges(_range(loop, *pair), most // parts) for pair in pairwise(bounds)])


def _range(loop: tirx.For, start: int, end: int) -> tirx.For:
    """A part of a loop, in which its tests are decided."""
    dtype = loop.loop_var.ty.dtype
    variable = tirx.Var(loop.loop_var.name, dtype)
    zero, extent = tirx.const(0, dtype), tirx.const(end - start, dtype)
    analyzer = sym.Analyzer()
    analyzer.bind(variable, ir.Range(zero, extent))

    def chosen(node: ir.Expr, test: ir.Expr, first: ir.Expr, second: ir.Expr) -> ir.Expr:
        found = analyzer.simplify(test)
        if not isinstance(found, tirx.IntImm):
            return node
        return first if int(found) else second

    def branch(call: ir.Call) -> ir.Expr:
        return chosen(call, *call.args) if function_name(call) == "if_then_else" else call

    def choice(node: tirx.Select) -> ir.Expr:
        return chosen(node, node.condition, node.true_value, node.false_value)

    body = at_step(loop.body, loop.loop_var, tirx.const(start, dtype) + variable)
    body = tvm_ffi.structural_map(
        body,
        [
            (tirx.FloorDiv, analyzer.simplify),
            (tirx.FloorMod, analyzer.simplify),
            (ir.Call, branch),
            (tirx.Select, choice),
        ],
    )
    return tirx.For(variable, zero, extent, loop.kind, body)


def _turns(loop: tirx.For) -> list[int]:
    """The places from which on a test, or a quotient, of a loop's index is another."""
    simplify = sym.Analyzer().simplify
    variable = loop.loop_var
    branches = [c for c in nodes(loop.body, ir.Call) if function_name(c) == "if_then_else"]
    tests = [call.args[0] for call in branches]
    tests += [node.condition for node in nodes(loop.body, tirx.Select)]
    found: list[int] = []
    for kind, turns in _TURNS.items():
        for test in nodes(tests, kind):
            if str(test.a.ty.dtype) != str(variable.ty.dtype):
                continue
            for sign in (1, -1):
                rest = simplify(test.a - test.b - variable * sign)
                if isinstance(rest, tirx.IntImm):
                    found += turns(sign, int(rest))
    first, end = int(loop.min), int(loop.min) + int(loop.extent)
    for division in (*nodes(loop.body, tirx.FloorDiv), *nodes(loop.body, tirx.FloorMod)):
        if not uses(division.a, variable) or not isinstance(division.b, tirx.IntImm):
            continue
        rest, size = simplify(division.a - variable), int(division.b)
        if isinstance(rest, tirx.IntImm) and (end - first) // size < _MOST:
            place = -int(rest) % size
            found += range(first + (place - first) % size, end, size)
    return found


# Where the sign of `sign * i + rest` makes a test another.
_TURNS: dict[type, Callable[[int, int], list[int]]] = {
    tirx.LT: lambda sign, rest: [-rest if sign > 0 else rest + 1],
    tirx.LE: lambda sign, rest: [1 - rest if sign > 0 else rest],
    tirx.GT: lambda sign, rest: [1 - rest if sign > 0 else rest],
    tirx.GE: lambda sign, rest: [-rest if sign > 0 else rest + 1],
    tirx.EQ: lambda sign, rest: [-sign * rest, 1 - sign * rest],
    tirx.NE: lambda sign, rest: [-sign * rest, 1 - sign * rest],
}
