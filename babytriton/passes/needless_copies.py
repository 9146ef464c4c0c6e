"""Copies of what nothing else reads, which are what they copy.

So is what steps of a loop append to a list, once it is stacked: the rows are there already.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import is_users
from babytriton.passes.bindings import CALL_TIR, replaced
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.uses import Uses


def without_needless_copies(mod: IRModule) -> IRModule:
    """A program without copies of tensors that a kernel has made and nothing else reads.

    Args:
        mod: a program of fused kernels.
    """
    if "vdevice" in mod.global_infos:
        return mod
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            functions[var] = _without_copies(mod, func)
    if all(functions[var] is func for var, func in mod.functions_items()):
        return mod
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(found)


def _without_copies(mod: IRModule, func: relax.Function) -> relax.Function:
    uses = Uses.of(func)
    same: dict[relax.Var, relax.Var] = {}
    blocks = []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            copied = _copied(mod, binding, uses)
            if copied is None:
                bindings.append(binding)
            else:
                # The copy's variable may be one that is seen outside of the block.
                same[copied] = binding.var
        blocks.append(type(block)(bindings))
    if not same:
        return func
    for source, copy in same.items():
        while copy in same:
            copy = same[copy]
        same[source] = copy
    body = relax.SeqExpr(blocks, func.body.body, func.body.span)
    _update_type(body, func.body.ty)
    body = replaced(body, same)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _copied(mod: IRModule, binding: relax.Binding, uses: Uses) -> relax.Var | None:
    """What a binding copies, if that is a kernel's result and nothing else reads it."""
    call = getattr(binding, "value", None)
    if not isinstance(call, ir.Call) or call.op != CALL_TIR or len(call.args) > 2:
        return None
    arguments = list(call.args[1].fields)
    if len(arguments) != 1 or not isinstance(arguments[0], relax.Var):
        return None
    [source] = arguments
    made = uses.values.get(source)
    if isinstance(made, relax.TupleGetItem):
        made = uses.values.get(made.tuple_value)
    is_new = isinstance(made, ir.Call) and made.op == CALL_TIR
    if not is_new or uses.reads[source] != 1 or not _is_copy(mod[call.args[0]]):
        return None
    return source if tvm_ffi.structural_equal(source.ty, binding.var.ty) else None


def _is_copy(func: tirx.PrimFunc) -> bool:
    """Whether a kernel gives all of its one parameter, however often copied, and no more."""
    blocks = plain_blocks(func)
    if not blocks or len(func.params) != 2 or is_users(func):
        return False
    last, out = func.params
    for block in blocks:
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad):
            return False
        load = store.value
        is_same = tvm_ffi.structural_equal(list(store.indices), list(load.indices))
        if not load.source.same_as(last) or not is_same:
            return False
        last = store.buffer
    return bool(last.same_as(out))
