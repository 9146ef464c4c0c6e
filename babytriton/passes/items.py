"""Items of what no operator that fuses gives: of the results of torch, of branches, of loops.

FuseOps takes items into groups of operators, whose parameters are then the tuples; and FuseTIR
takes the tensors of one such parameter for those of another.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax
from tvm.relax.expr import _update_type

from babytriton.passes.bindings import CALL_PACKED, CALL_TIR

_ITEM = "babytriton.item"
_FUSED = 2  # TVM's patterns up to injective: what reads the results may be computed with them


def taken_by_calls(mod: IRModule) -> IRModule:
    """A module with calls that give the items, which FuseOps leaves where they are."""

    def of_function(func: relax.Function) -> relax.Function:
        fused: set[relax.Var] = set()

        def change(binding: relax.VarBinding) -> relax.Expr | None:
            value = binding.value
            if _may_fuse(value, mod):
                fused.add(binding.var)
            if not isinstance(value, relax.TupleGetItem) or value.tuple_value in fused:
                return None
            name, place = relax.ExternFunc(_ITEM), relax.prim_value(value.index)
            call = relax.Call(CALL_PACKED, [name, value.tuple_value, place], None, [value.ty])
            _update_type(call, value.ty)
            return call

        return _with_values(func, change)

    return _changed(mod, of_function)


def taken_as_such(mod: IRModule) -> IRModule:
    """The same module with the items in the place of the calls."""

    def change(binding: relax.VarBinding) -> relax.Expr | None:
        value = binding.value
        if not isinstance(value, ir.Call) or value.op != CALL_PACKED:
            return None
        name, *operands = value.args
        if name.global_symbol != _ITEM:
            return None
        whole, place = operands
        return relax.TupleGetItem(whole, int(place))

    return _changed(mod, lambda func: _with_values(func, change))


def _may_fuse(value: relax.Expr, mod: IRModule) -> bool:
    """Whether what reads parts of this may become one kernel with it."""
    if not isinstance(value, ir.Call) or value.op != CALL_TIR:
        return isinstance(value, relax.Tuple)
    pattern = (mod[value.args[0]].attrs or {}).get("op_pattern")
    return pattern is None or int(pattern) <= _FUSED


def _changed(mod: IRModule, change: Callable[[relax.Function], relax.Function]) -> IRModule:
    before = {var: f for var, f in mod.functions_items() if isinstance(f, relax.Function)}
    after = {var: change(func) for var, func in before.items()}
    if all(after[var] is func for var, func in before.items()):
        return mod
    functions = dict(mod.functions_items()) | after
    made = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.Normalize()(made)


def _with_values(
    func: relax.Function, change: Callable[[relax.VarBinding], relax.Expr | None]
) -> relax.Function:
    """The function with other values of the variables for which there is one; or as it is."""
    values = {
        binding.var: value
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding) and (value := change(binding)) is not None
    }
    if not values:
        return func
    blocks = []
    for block in func.body.blocks:
        bindings = [
            relax.VarBinding(x.var, values[x.var], x.span) if x.var in values else x
            for x in block.bindings
        ]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
