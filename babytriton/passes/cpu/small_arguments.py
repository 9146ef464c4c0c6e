"""Loops over functions that are shorter to compute of small arguments, as nearly all are.

Such a loop runs by the formulas for small ones, and notes whether an argument was too large for
them; if one was, it runs again by those for all arguments. A loop in parallel does so piece by
piece. Running again changes nothing, as no parameters share memory: calls refuse those that do. Of
locals, none of which such a loop reads, TVM may give one the memory of another.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import function_name
from babytriton.passes.statements import (
    Effects,
    at_step,
    sequence,
    statements,
    with_parts,
    without_names,
)

# How many numbers of a loop in parallel run again together.
_PIECE = 1024


def small_first(
    loop: tirx.For, small_form: Callable[[ir.Call], tuple[ir.Call, ir.Expr] | None]
) -> tirx.Stmt:
    """The loop, by formulas for small arguments first where its functions have some.

    Args:
        loop: any.
        small_form: what computes a call of small arguments, and whether its own are too large;
            None for other calls.
    """
    stores = without_names(loop.body)
    if not all(isinstance(store, tirx.BufferStore) for store in stores):
        return loop
    calls = [call for call in nodes(stores, ir.Call) if small_form(call) is not None]
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    if not calls or loop.kind not in kinds or loop.annotations:
        return loop
    if not _runs_twice(sequence(stores)):
        return loop
    loop = with_parts(loop, sequence(stores))
    if loop.kind == tirx.ForKind.SERIAL:
        return _small_first(loop, calls, small_form)
    size = tirx.const(_PIECE, loop.loop_var.ty.dtype)
    piece = tirx.Var("piece", loop.loop_var.ty.dtype)
    each = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    first = piece * size
    body = at_step(loop.body, loop.loop_var, loop.min + first + each)
    inner = tirx.For(
        *(each, tirx.const(0, loop.loop_var.ty.dtype), tirx.Min(size, loop.extent - first)),
        *(tirx.ForKind.SERIAL, body),
    )
    calls = [call for call in nodes(body, ir.Call) if small_form(call) is not None]
    return tirx.For(
        *(piece, inner.min, tirx.ceildiv(loop.extent, size), tirx.ForKind.PARALLEL),
        _small_first(inner, calls, small_form),
    )


def _runs_twice(body: tirx.Stmt) -> bool:
    """Whether running it again changes nothing, and it runs all of its calls."""
    effects = Effects.of(body)
    conditions = [c for c in nodes(body, ir.Call) if function_name(c) == "if_then_else"]
    is_plain = not conditions and not nodes(body, tirx.Let)
    return is_plain and not effects.reads.keys() & effects.writes.keys()


def _small_first(
    loop: tirx.For,
    calls: list[ir.Call],
    small_form: Callable[[ir.Call], tuple[ir.Call, ir.Expr] | None],
) -> tirx.Stmt:
    """The loop by those formulas, and then by the others if an argument was too large."""
    zero = tirx.const(0, "int32")
    is_large = tirx.decl_buffer((1,), "int32", "is_large")
    found: ir.Expr = tirx.BufferLoad(is_large, [zero])

    for call in calls:
        form = small_form(call)
        assert form is not None
        found = tirx.bitwise_or(found, tirx.Cast("int32", form[1]))

    def small(call: ir.Call) -> ir.Expr:
        form = small_form(call)
        return call if form is None else form[0]

    noted = tirx.BufferStore(is_large, found, [zero])
    by_small = tvm_ffi.structural_map(loop.body, (ir.Call, small))
    index = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    body = at_step(sequence([noted, *statements(by_small)]), loop.loop_var, index)
    return sequence(
        [
            tirx.AllocBuffer(is_large),
            tirx.BufferStore(is_large, zero, [zero]),
            tirx.For(index, loop.min, loop.extent, loop.kind, body),
            tirx.IfThenElse(tirx.NE(tirx.BufferLoad(is_large, [zero]), zero), loop, None),
        ]
    )
