"""Loops whose index decides what they read, one for each range where it decides the same.

A tensor that is put together from others, or repeated, is stored by loops that ask at each step
where they are. Within a range there is nothing to ask: they copy, which is vector code. Many ranges
of one length are one loop, over their number, around another.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.cpu.lanes import is_elementwise
from babytriton.passes.intrinsics import dtype_of, function_name
from babytriton.passes.statements import at_step, sequence, statements, with_parts

# More loops than these take longer to compile than they save.
_MOST = 8

# Shorter periods make no vectors. Loops of up to the other number of steps LLVM may write
# out before it looks for vectors.
_SHORTEST, _LONGEST = 8, 64

# Fewer periods are too few for the machine's threads.
_TASKS = 64


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
    if loop.kind not in kinds or loop.annotations or loop.step is not None or most < 2:
        return loop
    is_known = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)
    bounds = _bounds(loop) if is_known else []
    parts = len(bounds) - 1
    if 1 < parts <= most:
        ranges = [_range(loop, *pair) for pair in pairwise(bounds)]
        return sequence([_by_ranges(part, most // parts) for part in ranges])
    halves = _at_told_place(loop)
    if halves:
        return sequence([_by_ranges(part, most // 2) for part in halves])
    period = _period(loop) if is_known else None
    return loop if period is None else _by_periods(loop, period, most)


def _period(loop: tirx.For) -> int | None:
    """After how many steps quotients and remainders of the index begin anew, all along.

    None if they do so after no common number of steps, or the last period is not whole.
    """
    simplify, first = sym.Analyzer().simplify, int(loop.min)
    sizes: set[int] = set()
    for division in (*nodes(loop.body, tirx.FloorDiv), *nodes(loop.body, tirx.FloorMod)):
        if not uses(division.a, loop.loop_var):
            continue
        rest = simplify(division.a - loop.loop_var)
        if not isinstance(division.b, tirx.IntImm) or not isinstance(rest, tirx.IntImm):
            return None
        if (int(rest) + first) % int(division.b):
            return None
        sizes.add(int(division.b))
    period, extent = min(sizes, default=0), int(loop.extent)
    are_whole = period >= _SHORTEST and not any(size % period for size in (*sizes, extent))
    return period if are_whole and period < extent else None


def _by_periods(loop: tirx.For, period: int, most: int) -> tirx.For:
    """The loop as one over periods, around one over the steps of each; as it is if that is no gain.

    LLVM may write out the steps of a period before it looks for vectors: they become vectors here.
    """
    dtype = loop.loop_var.ty.dtype
    number, step = tirx.Var("period", dtype), tirx.Var(loop.loop_var.name, dtype)
    zero, size = tirx.const(0, dtype), tirx.const(period, dtype)
    count = tirx.const(int(loop.extent) // period, dtype)
    if loop.kind == tirx.ForKind.PARALLEL and int(count) < _TASKS:
        return loop
    analyzer = sym.Analyzer()
    analyzer.bind(number, ir.Range(zero, count))
    analyzer.bind(step, ir.Range(zero, size))
    body = _divided(at_step(loop.body, loop.loop_var, loop.min + number * size + step), analyzer)
    inner = tirx.For(step, zero, size, tirx.ForKind.SERIAL, body)
    if period > _LONGEST or (nodes(body, ir.Call) and period % _SHORTEST == 0):
        return tirx.For(number, zero, count, loop.kind, _by_ranges(inner, most))
    if nodes(body, ir.Call) or not _has_vectors(inner):
        return loop
    vector = tirx.For(step, zero, size, tirx.ForKind.VECTORIZED, body)
    return tirx.For(number, zero, count, loop.kind, vector)


def _has_vectors(loop: tirx.For) -> bool:
    """Whether TVM makes vectors of a loop without calls: not of truth values in memory."""
    stores = statements(loop.body)
    in_memory = [*nodes(loop.body, ir.TensorLoad), *(store.value for store in stores)]
    return is_elementwise(loop) and not any(dtype_of(x) == "bool" for x in in_memory)


def _divided(body: tirx.Stmt, analyzer: sym.Analyzer) -> tirx.Stmt:
    """The statement with what is known of its quotients and remainders."""
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    return tvm_ffi.structural_map(body, [(kind, analyzer.simplify) for kind in kinds])


def _bounds(loop: tirx.For) -> list[int]:
    """Where the ranges of a loop begin, and where the last one ends."""
    first, end = int(loop.min), int(loop.min) + int(loop.extent)
    return [first, *sorted({place for place in _turns(loop) if first < place < end}), end]


def _range(loop: tirx.For, start: int, end: int) -> tirx.For:
    """A part of a loop, in which its tests are decided."""
    dtype = loop.loop_var.ty.dtype
    variable = tirx.Var(loop.loop_var.name, dtype)
    zero, extent = tirx.const(0, dtype), tirx.const(end - start, dtype)
    analyzer = sym.Analyzer()
    analyzer.bind(variable, ir.Range(zero, extent))
    place = tirx.const(start, dtype) + variable
    body = _divided(at_step(loop.body, loop.loop_var, place), analyzer)
    return tirx.For(variable, zero, extent, loop.kind, _decided(body, analyzer))


def _decided(body: tirx.Stmt, analyzer: sym.Analyzer) -> tirx.Stmt:
    """The statement without the branches that what is known decides."""

    def chosen(node: ir.Expr, test: ir.Expr, first: ir.Expr, second: ir.Expr) -> ir.Expr:
        found = analyzer.simplify(test)
        if not isinstance(found, tirx.IntImm):
            return node
        return first if int(found) else second

    def branch(call: ir.Call) -> ir.Expr:
        return chosen(call, *call.args) if function_name(call) == "if_then_else" else call

    def choice(node: tirx.Select) -> ir.Expr:
        return chosen(node, node.condition, node.true_value, node.false_value)

    return tvm_ffi.structural_map(body, [(ir.Call, branch), (tirx.Select, choice)])


def _at_told_place(loop: tirx.For) -> list[tirx.For]:
    """The loop in two, at a place which a call tells where one of its branches turns.

    Nothing of a loop of known length: tiles are better whole.
    """
    if isinstance(loop.extent, tirx.IntImm):
        return []
    for test in _tests(loop):
        place = _told_place(test, loop.loop_var)
        if place is None:
            continue
        dtype = loop.loop_var.ty.dtype
        zero = tirx.const(0, dtype)
        steps = tirx.Min(tirx.Max(place - loop.min, zero), loop.extent)
        is_before = isinstance(test, (tirx.LT, tirx.LE))
        return [
            _where(loop, zero, steps, test, is_before),
            _where(loop, steps, loop.extent - steps, test, not is_before),
        ]
    return []


def _where(loop: tirx.For, start: ir.Expr, extent: ir.Expr, test: ir.Expr, holds: bool) -> tirx.For:
    """Some steps of a loop, at all of which a test holds, or at none."""
    variable = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    known = tirx.const(holds, "bool")

    def decided(node: ir.Expr) -> ir.Expr:
        return known if tvm_ffi.structural_equal(node, test) else node

    body = tvm_ffi.structural_map(loop.body, (type(test), decided))
    body = at_step(_decided(body, sym.Analyzer()), loop.loop_var, loop.min + start + variable)
    return tirx.For(variable, tirx.const(0, variable.ty.dtype), extent, loop.kind, body)


def _tests(loop: tirx.For) -> list[ir.Expr]:
    """The comparisons that branches of a loop depend on."""
    calls = [c for c in nodes(loop.body, ir.Call) if function_name(c) == "if_then_else"]
    kinds = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    return [test for call in calls for kind in kinds for test in nodes(call.args[0], kind)]


def _told_place(test: ir.Expr, variable: tirx.Var) -> ir.Expr | None:
    """From which step on a comparison is another, if that is no constant."""
    if str(test.a.ty.dtype) != str(variable.ty.dtype) or not uses(test, variable):
        return None
    rest = sym.Analyzer().simplify(test.b - test.a + variable)
    if uses(rest, variable) or isinstance(rest, tirx.IntImm) or nodes(rest, ir.TensorLoad):
        return None
    return rest + 1 if isinstance(test, (tirx.LE, tirx.GT)) else rest


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
