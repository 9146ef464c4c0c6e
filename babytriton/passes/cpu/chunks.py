"""Loops over functions of functions, one function at a time for a chunk of numbers.

Each formula is a chain of operations, every one of which waits for the one before. A processor
works on several numbers meanwhile, as many as its window of instructions has room for: of a chain
three times as long, only a third. So the inner functions of a chunk come first, and lie in the
first cache when the outer ones need them.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, sym, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.cpu.formulas import FORMULAS, SMALL
from babytriton.passes.cpu.lanes import vectorizes
from babytriton.passes.intrinsics import dtype_of, function_name
from babytriton.passes.statements import at_step, is_number, sequence, statements, with_parts

# Numbers: enough to keep the vector units busy, few enough for all to stay in the first cache.
CHUNK = 512


def in_chunks(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with its loops over functions of functions by chunks."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([in_chunks(part) for part in statements(stmt)])
    if not isinstance(stmt, tirx.For):
        return stmt
    if isinstance(stmt.body, tirx.BufferStore):
        return _by_chunks(stmt, stmt.body)
    return with_parts(stmt, in_chunks(stmt.body))


def _by_chunks(loop: tirx.For, store: tirx.BufferStore) -> tirx.Stmt:
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    # A piece of a loop may be shorter than a chunk, and what is left of one less than nothing.
    if loop.kind not in kinds or loop.annotations or nodes(loop.extent, tirx.Min):
        return loop
    if not _innermost(store.value) or not vectorizes(loop) or _is_better_whole(store):
        return loop
    dtype, simplify = loop.loop_var.ty.dtype, sym.Analyzer().simplify
    zero, size = tirx.const(0, dtype), tirx.const(CHUNK, dtype)
    chunks, rest = simplify(loop.extent // size), simplify(loop.extent % size)
    if is_number(chunks, 0):
        return loop
    chunk, place = tirx.Var("chunk", dtype), tirx.Var(loop.loop_var.name, dtype)
    at = at_step(store, loop.loop_var, loop.min + chunk * size + place)
    inner = sequence(_one_by_one(at, place))
    done: list[tirx.Stmt] = [tirx.For(chunk, zero, chunks, loop.kind, inner)]
    if not is_number(rest, 0):
        single = tirx.Var(loop.loop_var.name, dtype)
        body = at_step(store, loop.loop_var, loop.min + chunks * size + single)
        done.append(tirx.For(single, zero, rest, tirx.ForKind.SERIAL, body))
    return sequence(done)


def _is_better_whole(store: tirx.BufferStore) -> bool:
    """Whether what a condition guards would be read anyway, or what runs again be overwritten.

    Loops over functions that are shorter of small arguments run again for large ones; TVM may give
    a function's values the memory of its arguments by then.
    """
    calls = nodes(store.value, ir.Call)
    outer = [call for call in calls if function_name(call) in SMALL and _functions_in(call)]
    return bool(outer) or any(function_name(call) == "if_then_else" for call in calls)


def _functions_in(call: ir.Call) -> list[ir.Call]:
    return [inner for argument in call.args for inner in _functions(argument)]


def _one_by_one(store: tirx.BufferStore, place: tirx.Var) -> list[tirx.Stmt]:
    """A chunk's loops: over the innermost functions, over those of their values, and so on.

    Args:
        store: of the number at a place of the chunk.
        place: that.
    """
    done: list[tirx.Stmt] = []
    while inner := _innermost(store.value) or _chosen(store.value):
        buffers = [
            tirx.decl_buffer((CHUNK,), dtype_of(call), f"{function_name(call)}_chunk")
            for call in inner
        ]
        done += map(tirx.AllocBuffer, buffers)
        stores = [tirx.BufferStore(buffer, call, [place]) for buffer, call in zip(buffers, inner)]
        # A loop over functions that are shorter of small arguments runs again for large ones: no
        # other may be in it, which reads what TVM gives the memory of its results.
        again = [store for store, call in zip(stores, inner) if function_name(call) in SMALL]
        once = [store for store, call in zip(stores, inner) if function_name(call) not in SMALL]
        done += [_loop(place, sequence(part)) for part in (again, once) if part]
        value = _reading(store.value, inner, [tirx.BufferLoad(b, [place]) for b in buffers])
        store = tirx.BufferStore(store.buffer, value, store.indices)
    return [*done, _loop(place, store)]


def _reading(value: ir.Expr, calls: list[ir.Call], loads: list[ir.Expr]) -> ir.Expr:
    """The value with loads in place of some calls."""

    def read(call: ir.Call) -> ir.Expr:
        return next((load for load, other in zip(loads, calls) if _is_same(call, other)), call)

    return tvm_ffi.structural_map(value, (ir.Call, read))


def _loop(place: tirx.Var, body: tirx.Stmt) -> tirx.Stmt:
    dtype = place.ty.dtype
    variable = tirx.Var(place.name, dtype)
    zero, size = tirx.const(0, dtype), tirx.const(CHUNK, dtype)
    return tirx.For(variable, zero, size, tirx.ForKind.SERIAL, at_step(body, place, variable))


def _innermost(value: ir.Expr) -> list[ir.Call]:
    """The functions of no other ones' values that others are functions of, each of them once."""
    found: list[ir.Call] = []
    for outer in _functions(value):
        for call in _functions_in(outer):
            if not _functions_in(call) and not any(_is_same(call, other) for other in found):
                found.append(call)
    return found


def _chosen(value: ir.Expr) -> list[ir.Call]:
    """The functions left in a value that chooses, which may be of what others are chosen by.

    TVM takes such a choice for a branch, and a function in a branch for what may not always run.
    """
    found: list[ir.Call] = []
    for call in _functions(value) if nodes(value, tirx.Select) else ():
        if not any(_is_same(call, other) for other in found):
            found.append(call)
    return found


def _functions(expr: ir.Expr) -> list[ir.Call]:
    """The calls in it that are computed by formulas."""
    return [call for call in nodes(expr, ir.Call) if function_name(call) in FORMULAS]


def _is_same(left: ir.Expr, right: ir.Expr) -> bool:
    return bool(tvm_ffi.structural_equal(left, right))
