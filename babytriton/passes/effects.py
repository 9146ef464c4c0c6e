"""What a program does beside computing, such as printing: each once, and not on the way back."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, relax
from tvm.ir import GlobalVar, IRModule
from tvm.relax.expr import _update_type
from tvm.relax.utils import copy_with_new_vars

from babytriton.ops.primfunc import nodes
from babytriton.ops.regions import WAY_BACK


def effective(mod: IRModule) -> set[GlobalVar]:
    """The functions of a module that do something beside computing, or call one that does."""
    functions = {var: fn for var, fn in mod.functions_items() if isinstance(fn, relax.Function)}
    found = {var for var, fn in functions.items() if acts(fn.body, set())}
    while more := {var for var, fn in functions.items() if var not in found and acts(fn, found)}:
        found |= more
    return found


def acts(expr: ir.Expr, functions: set[GlobalVar]) -> bool:
    """Whether an expression does something beside computing.

    Args:
        expr: the expression.
        functions: those that do.
    """
    called = {call.op for call in nodes(expr, ir.Call)}
    return any(isinstance(op, relax.ExternFunc) or op in functions for op in called)


def silenced(mod: IRModule, everything: bool) -> IRModule:
    """A program with gradients that does nothing beside computing on its way back.

    Args:
        mod: the program.
        everything: whether all of it is run for gradients alone.
    """
    noisy = effective(mod)
    functions = {var: fn for var, fn in mod.functions_items() if isinstance(fn, relax.Function)}
    back = set(functions) if everything else {v for v, fn in functions.items() if _is_back(fn)}
    found = dict(mod.functions_items())
    called = {call.op for fn in functions.values() for call in nodes(fn.body, ir.Call)}
    twins = {var: _twin(var) for var in noisy & called - back}
    for var in noisy & back:
        found[var] = _silent(functions[var], twins)
    if noisy & back:
        for var, twin in twins.items():
            found[twin] = copy_with_new_vars(_silent(functions[var], twins))
    return IRModule(found, attrs=mod.attrs, global_infos=mod.global_infos)


def _twin(var: GlobalVar) -> GlobalVar:
    found = GlobalVar(f"{var.name_hint}_silent")
    _update_type(found, var.ty)
    return found


def _is_back(function: relax.Function) -> bool:
    return function.attrs is not None and WAY_BACK in function.attrs


def _silent(function: relax.Function, twins: dict[GlobalVar, GlobalVar]) -> relax.Function:
    """The function without what it does beside computing.

    Args:
        function: of the program.
        twins: for the functions that do something, those that do not.
    """

    def without(block: relax.BindingBlock) -> relax.BindingBlock:
        kept = [b for b in block.bindings if not isinstance(_callee(b.value), relax.ExternFunc)]
        return relax.BindingBlock(kept)

    def redirected(call: ir.Call) -> ir.Call:
        twin = twins.get(call.op) if isinstance(call.op, GlobalVar) else None
        return call if twin is None else relax.Call(twin, call.args, call.attrs, call.ty_args)

    body = tvm_ffi.structural_map(
        function.body, [(relax.BindingBlock, without), (ir.Call, redirected)]
    )
    return relax.Function(function.params, body, function.ret_ty, True, function.attrs)


def _callee(value: ir.Expr) -> object:
    return value.op if isinstance(value, ir.Call) else None
