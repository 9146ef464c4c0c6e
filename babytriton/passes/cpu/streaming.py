"""Results too large for the caches are stored past them.

A processor fetches a line of memory before it changes a part of it: an ordinary store of what is
not in a cache moves it twice, and takes the place of what will be read next. A non-temporal store
of a whole line does neither. TVM has none; they are a few lines of LLVM IR here.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import IRModule, ir, sym, tirx

from babytriton.ops.primfunc import nodes, with_kernels
from babytriton.passes.blocks import parameters
from babytriton.passes.cpu.caches import LINE_BYTES, element_bytes, too_large
from babytriton.passes.cpu.formulas import SMALL
from babytriton.passes.cpu.lanes import is_elementwise, moves_by_one
from babytriton.passes.intrinsics import function_name, rewrite
from babytriton.passes.nests import offset
from babytriton.passes.statements import at_step, is_number, sequence, statements, with_parts

# Marks stores while TVM lowers the loops around them.
_MARK = "babytriton.past_caches"

# What a vector of numbers is called in LLVM IR.
_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

# A line is written as a whole where it starts at the store's address, and as usual elsewhere.
_SOURCE = """
define void @{name}(ptr %to, {type} %numbers) {{
  %address = ptrtoint ptr %to to i64
  %beyond = and i64 %address, {beyond}
  %is_line = icmp eq i64 %beyond, 0
  br i1 %is_line, label %line, label %other
line:
  store {type} %numbers, ptr %to, align {line}, !nontemporal !0
  ret void
other:
  store {type} %numbers, ptr %to, align 1
  ret void
}}

!0 = !{{i32 1}}
"""


def past_caches(mod: IRModule) -> IRModule:
    """Kernels as plain loops -> the same, with stores marked that should go past the caches."""
    return with_kernels(mod, _marked)


def store_past_caches() -> tvm.transform.Pass:
    """Marked stores -> non-temporal ones, for after TVM has made vectors of the loops."""

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        return rewrite(mod, tirx.AttrStmt, _stored)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.StorePastCaches")


def _marked(func: tirx.PrimFunc) -> tirx.PrimFunc:
    # Where two names may stand for the same memory, what is stored may be read again.
    if not (func.attrs and func.attrs.get("tirx.noalias", False)):
        return func
    condition = too_large(func)
    if condition is False:
        return func
    buffers = parameters(func)
    read = {load.source for load in nodes(func.body, ir.TensorLoad)}
    results = {buffer for buffer in buffers if buffer not in read}

    def marked(loop: tirx.For) -> tirx.Stmt:
        stores = statements(loop.body)
        if not any(isinstance(s, tirx.BufferStore) and s.buffer in results for s in stores):
            return loop
        is_vector = loop.kind == tirx.ForKind.VECTORIZED
        past = _with_marks(loop, results) if is_vector else _in_vectors(loop, results)
        if condition is True or past.same_as(loop):
            return past
        return tirx.IfThenElse(condition, past, loop)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, marked)))


def _in_vectors(loop: tirx.For, results: set[tirx.Var]) -> tirx.Stmt:
    """A loop that stores elements one beside the other, as one that stores lines of them."""
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    if loop.kind not in kinds or loop.annotations:
        return loop
    if not is_elementwise(loop) or _is_better_left(loop):
        return loop
    dtype = loop.loop_var.ty.dtype
    lanes = LINE_BYTES // min(
        element_bytes(s.buffer) for s in statements(loop.body) if s.buffer in results
    )
    size, zero = tirx.const(lanes, dtype), tirx.const(0, dtype)
    vectors = tirx.floordiv(loop.extent, size)
    rest = sym.Analyzer().simplify(tirx.floormod(loop.extent, size))
    if is_number(vectors, 0):
        return loop
    line, lane = tirx.Var(loop.loop_var.name, dtype), tirx.Var("lane", dtype)
    body = at_step(loop.body, loop.loop_var, loop.min + line * size + lane)
    vector = tirx.For(lane, zero, size, tirx.ForKind.VECTORIZED, body)
    parts: list[tirx.Stmt] = [
        tirx.For(line, zero, vectors, loop.kind, _with_marks(vector, results))
    ]
    if not is_number(rest, 0):
        single = tirx.Var(loop.loop_var.name, dtype)
        body = at_step(loop.body, loop.loop_var, loop.min + vectors * size + single)
        parts.append(tirx.For(single, zero, rest, tirx.ForKind.SERIAL, body))
    return sequence(parts)


def _is_better_left(loop: tirx.For) -> bool:
    """Whether LLVM makes the better vectors: of calls that TVM makes none of, or two loops of."""
    calls = nodes(loop.body, ir.Call)
    return any(function_name(call) in SMALL or not _has_vectors(call) for call in calls)


def _has_vectors(call: ir.Call) -> bool:
    """Whether TVM makes a vector operation of the call."""
    is_known = isinstance(call.op, ir.Op) and bool(call.op.get_attr("TVectorizable"))
    return is_known or function_name(call) == "reinterpret"


def _with_marks(loop: tirx.For, results: set[tirx.Var]) -> tirx.For:
    """The vectorized loop with marks at its stores of results."""

    def marked(store: tirx.Stmt) -> tirx.Stmt:
        if not isinstance(store, tirx.BufferStore) or store.buffer not in results:
            return store
        has_lines = int(loop.extent) * element_bytes(store.buffer) % LINE_BYTES == 0
        place = offset(store.buffer, list(store.indices))
        if not has_lines or not moves_by_one(place, loop.loop_var):
            return store
        return tirx.AttrStmt(store.buffer, _MARK, tirx.const(1, "int32"), store)

    return with_parts(loop, sequence([marked(stmt) for stmt in statements(loop.body)]))


def _stored(mark: tirx.AttrStmt) -> tirx.Stmt:
    """A marked store as a non-temporal one, where it is of a vector."""
    if mark.attr_key != _MARK:
        return mark
    *before, store = statements(mark.body)
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.indices[-1], tirx.Ramp):
        return mark.body
    ramp, dtype = store.indices[-1], str(store.value.ty.dtype)
    element, _, lanes = dtype.partition("x")
    if element not in _TYPES or not lanes:
        return mark.body
    name = f"babytriton_store_{dtype}"
    to = tirx.address_of(tirx.BufferLoad(store.buffer, [*store.indices[:-1], ramp.base]))
    source = _SOURCE.format(
        name=name, type=f"<{lanes} x {_TYPES[element]}>", beyond=LINE_BYTES - 1, line=LINE_BYTES
    )
    call = tirx.Evaluate(tirx.call_extern("void", name, to, store.value))
    definition = tirx.AttrStmt(store.buffer, "pragma_import_llvm", ir.StringImm(source), call)
    return sequence([*before, definition])
