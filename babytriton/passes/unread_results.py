"""Walks that nobody reads all results of -> the same without the others.

A running maximum has the places of it beside it, which few ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes, with_fields
from babytriton.ops.scans import SCAN
from babytriton.passes.bindings import CALL_TIR, add_kernel, parts_in, read_by
from babytriton.passes.scans import is_walk, results_of
from babytriton.passes.statements import sequence, statements, with_parts


def without_unread_results(mod: IRModule) -> IRModule:
    """The program with another kernel for each walk of whose results some are not read.

    Args:
        mod: of operators, and of calls of kernels; what is not read is not taken out of tuples.
    """
    functions = dict(mod.functions_items())
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = _read(function, functions)
    if all(functions[var] is function for var, function in mod.functions_items()):
        return mod
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _read(function: relax.Function, functions: dict[ir.GlobalVar, ir.BaseFunc]) -> relax.Function:
    """A function of the program with such kernels, which are added to the others."""
    blocks = list(function.body.blocks)
    for number, block in enumerate(blocks):
        parts = parts_in(block)
        if not parts:
            continue
        readers = [var for binding in block.bindings for var in read_by(binding)]
        found: dict[relax.Var, relax.Binding | None] = {}
        for binding in block.bindings:
            own, value = parts.get(binding.var, {}), getattr(binding, "value", None)
            is_whole = not isinstance(binding.var, relax.DataflowVar)
            if len(own) != 1 or is_whole or readers.count(binding.var) > 1:
                continue
            ((place, part),) = own.items()
            if isinstance(value, ir.Call) and value.op == CALL_TIR:
                kernel = _with_one(functions[value.args[0]], place, len(binding.var.ty.fields))
                if kernel is not None:
                    made = add_kernel(functions, value.args[0].name_hint, kernel)
                    arguments = [made, *value.args[1:]]
                    call = relax.Call(value.op, arguments, value.attrs, [part.ty], value.span)
                    found |= {binding.var: relax.VarBinding(part, call), part: None}
        if found:
            kept = [found.get(binding.var, binding) for binding in block.bindings]
            blocks[number] = type(block)([binding for binding in kept if binding is not None])
    if all(one.same_as(other) for one, other in zip(blocks, function.body.blocks)):
        return function
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )


def _with_one(func: tirx.PrimFunc, place: int, count: int) -> tirx.PrimFunc | None:
    """A walk with one of its results; None of what is no walk.

    Args:
        func: the kernel.
        place: which result it is.
        count: how many there are; they are the last parameters.
    """
    if not any(map(is_walk, nodes(func, s_tir.SBlock))):
        return None
    first = len(func.params) - count
    unread = {param for n, param in enumerate(func.params[first:]) if n != place}
    params = [param for param in func.params if param not in unread]

    def of_block(block: s_tir.SBlock) -> s_tir.SBlock:
        return _without(block, unread, place) if is_walk(block) else block

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, of_block))
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def _without(block: s_tir.SBlock, unread: set[tirx.Var], place: int) -> s_tir.SBlock:
    """A walk without some results, nor what is kept for these alone."""
    kept = [store.buffer for store in results_of(block) if store.buffer not in unread]
    stores = nodes(block.body, tirx.BufferStore)
    while True:
        read = {
            load.source
            for store in stores
            if store.buffer in kept
            for load in nodes(store.value, ir.TensorLoad)
        }
        more = [cell for cell in block.alloc_buffers if cell in read and cell not in kept]
        if not more:
            break
        kept += more

    def of_sequence(stmts: Sequence[tirx.Stmt]) -> tirx.Stmt:
        return sequence(
            [x for x in stmts if not isinstance(x, tirx.BufferStore) or x.buffer in kept]
        )

    def of_loop(loop: tirx.For) -> tirx.For:
        return with_parts(loop, of_sequence(statements(loop.body)))

    body = tvm_ffi.structural_map(block.body, (tirx.For, of_loop))
    operator, dim, backwards, *kinds = block.annotations[SCAN]
    return with_fields(
        block,
        body=of_sequence(statements(body)),
        writes=[region for region in block.writes if region.source in kept],
        alloc_buffers=[cell for cell in block.alloc_buffers if cell in kept],
        annotations={**block.annotations, SCAN: [operator, dim, backwards, kinds[place]]},
    )
