"""Places that a loop reads, read before it.

What a loop stores might be, for all that LLVM sees of a kernel of symbolic sizes, the number that
tells where to read next: it would read that again at each step, and make no vectors. Parameters of
kernels share no memory.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from babytriton.passes.blocks import uses
from babytriton.passes.intrinsics import function_name
from babytriton.passes.statements import sequence, statements, with_parts


def read_before(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement with the integers that are the same at all steps of a loop read before it."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([read_before(part) for part in statements(stmt)])
    if not isinstance(stmt, tirx.For):
        return stmt
    stores = statements(stmt.body)
    if stmt.kind != tirx.ForKind.SERIAL or not all(
        isinstance(store, tirx.BufferStore) for store in stores
    ):
        return with_parts(stmt, read_before(stmt.body))
    found = _places(stmt)
    if not found:
        return stmt
    places = [tirx.decl_buffer((1,), str(load.ty.dtype), "place") for load in found]
    first = [tirx.const(0, "int64")]

    def read(load: ir.TensorLoad) -> ir.TensorLoad:
        for place, other in zip(places, found):
            if tvm_ffi.structural_equal(load, other):
                return tirx.BufferLoad(place, first)
        return load

    before = [
        step
        for place, load in zip(places, found)
        for step in (tirx.AllocBuffer(place), tirx.BufferStore(place, load, first))
    ]
    body = tvm_ffi.structural_map(stmt.body, (ir.TensorLoad, read))
    return sequence([*before, with_parts(stmt, body)])


def _places(loop: tirx.For) -> list[ir.TensorLoad]:
    """The integers that a loop reads at all steps, each of them once."""
    stores = statements(loop.body)
    written = [store.buffer for store in stores]
    found: list[ir.TensorLoad] = []

    def visit(load: ir.TensorLoad) -> None:
        is_place = str(load.ty.dtype).startswith(("int", "uint"))
        moves = any(uses(index, loop.loop_var) for index in load.indices)
        is_written = any(load.source.same_as(buffer) for buffer in written)
        is_known = any(tvm_ffi.structural_equal(load, other) for other in found)
        if is_place and not (moves or is_written or is_known):
            found.append(load)

    def visit_call(call: ir.Call) -> tvm_ffi.WalkResult | None:
        if function_name(call) != "if_then_else":
            return None
        walk(call.args[0])
        return tvm_ffi.WalkResult.SKIP  # what a branch reads may not be there in the other

    def walk(expr: ir.Expr) -> None:
        visitors = [(ir.Call, visit_call), (ir.TensorLoad, visit)]
        tvm_ffi.structural_walk(expr, visitors, order="pre")

    for store in stores:
        for expr in (store.value, *store.indices):
            walk(expr)
    return found
