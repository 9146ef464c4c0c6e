"""Sums in float64 of numbers that are in fewer bits: as near as one is, in any order.

For kernels of which time matters less than that: those that compute while compiling.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, s_tir, te, tirx

from babytriton.ops.primfunc import nodes, with_fields, with_kernels
from babytriton.passes.statements import sequence, statements

_WIDE = "float64"
_NARROW = ("float32", "float16", "bfloat16")
_COMBINES = (tirx.Add, tirx.Mul)


def with_wide_sums(mod: IRModule) -> IRModule:
    """Kernels, unscheduled, whose sums and products of floats are rounded once they are done."""
    return with_kernels(mod, _with_wide_sums)


def _with_wide_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sums = [x.body for x in nodes(func.body, s_tir.SBlock) if _is_sum(x)]
    wide = {store.buffer: _wide(store.buffer) for store in sums}
    if not wide:
        return func

    def of_load(load: ir.TensorLoad) -> ir.Expr:
        if load.source not in wide:
            return load
        dtype = str(load.source.ty.dtype)
        return tirx.Cast(dtype, tirx.BufferLoad(wide[load.source], list(load.indices)))

    def of_store(store: tirx.BufferStore) -> tirx.Stmt:
        if store.buffer not in wide:
            return store
        value = store.value
        if isinstance(value, _COMBINES):
            value = type(value)(_widened(value.a), _widened(value.b))
        return tirx.BufferStore(wide[store.buffer], _widened(value), list(store.indices))

    def of_block(block: s_tir.SBlock) -> s_tir.SBlock:
        reads, writes = (
            [tirx.BufferRegion(wide.get(x.source, x.source), x.region) for x in regions]
            for regions in (block.reads, block.writes)
        )
        own = [wide.get(buffer, buffer) for buffer in block.alloc_buffers]
        return with_fields(block, reads=reads, writes=writes, alloc_buffers=own)

    entries = [
        (ir.TensorLoad, of_load),
        (tirx.BufferStore, of_store),
        (s_tir.SBlock, of_block),
    ]
    body = tvm_ffi.structural_map(func.body, entries)
    results = {buffer: wide[buffer] for buffer in func.params if buffer in wide}
    rounded = [_rounded(*pair) for pair in results.items()]
    root = with_fields(
        body.block,
        body=sequence([*statements(body.block.body), *rounded]),
        alloc_buffers=[*body.block.alloc_buffers, *results.values()],
    )
    whole = s_tir.SBlockRealize(body.iter_values, body.predicate, root, body.span)
    return tirx.PrimFunc(func.params, whole, func.ret_type, func.attrs, func.span)


def _is_sum(block: s_tir.SBlock) -> bool:
    """Whether a block adds up, or multiplies, numbers of few bits in a tensor."""
    store = block.body
    if block.init is None or not isinstance(store, tirx.BufferStore):
        return False
    is_own = [
        isinstance(side, ir.TensorLoad) and side.source.same_as(store.buffer)
        for side in (store.value.a, store.value.b)
        if isinstance(store.value, _COMBINES)
    ]
    return any(is_own) and str(store.buffer.ty.dtype) in _NARROW


def _wide(buffer: tirx.Var) -> tirx.Var:
    return tirx.decl_buffer(buffer.shape, _WIDE, buffer.name)


def _widened(value: ir.Expr) -> ir.Expr:
    is_rounded = isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == _WIDE
    return value.value if is_rounded else tirx.Cast(_WIDE, value)


def _rounded(result: tirx.Var, wide: tirx.Var) -> tirx.Stmt:
    """The statement that gives a result the numbers of a sum."""
    dtype, given = str(result.ty.dtype), te.placeholder(result.shape, _WIDE)
    made = te.compute(result.shape, lambda *at: given(*at).astype(dtype), name=result.name)
    func = te.create_prim_func([given, made], "int64")
    names = dict(zip(func.params, (wide, result)))
    nest = func.body.block.body
    return tvm_ffi.structural_map(nest, (ir.Var, lambda var: names.get(var, var)))
