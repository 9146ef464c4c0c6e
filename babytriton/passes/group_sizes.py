"""Sizes that groups of operators are given.

FuseOps gives a group one parameter for all sizes that only its shapes tell, and others for what its
operators take as numbers. FuseTIR knows either: of both it gives a kernel some of them twice.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, relax
from tvm.relax.expr import _update_type


def given_as_one_shape(mod: IRModule) -> IRModule:
    """A module whose groups take the numbers beside a shape as sizes of that shape."""
    groups = {var: func for var, func in mod.functions_items() if _takes_both(func)}
    if not groups:
        return mod

    def changed(call: ir.Call) -> ir.Call:
        group = groups.get(call.op) if isinstance(call.op, ir.GlobalVar) else None
        if group is None:
            return call
        *others, shape = call.args
        tensors, numbers = _apart(group, others)
        made = relax.Call(made_for[call.op], [*tensors, relax.ShapeExpr([*shape, *numbers])])
        _update_type(made, call.ty)
        return made

    functions = dict(mod.functions_items())
    made_for = {}
    for var, group in groups.items():
        del functions[var]
        *others, shape = group.params
        tensors, numbers = _apart(group, others)
        sizes = relax.Var(shape.name, relax.ShapeType([*shape.ty.values, *numbers]))
        made = relax.Function([*tensors, sizes], group.body, group.ret_ty, True, group.attrs)
        made_for[var] = ir.GlobalVar(var.name_hint)
        _update_type(made_for[var], made.ty)
        functions[made_for[var]] = made
    for var, func in functions.items():
        if isinstance(func, relax.Function):
            functions[var] = tvm_ffi.structural_map(func, (ir.Call, changed))
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _takes_both(func: ir.BaseFunc) -> bool:
    """Whether it is a group of operators that takes numbers, and sizes as a shape."""
    if not isinstance(func, relax.Function) or not (func.attrs or {}).get("Primitive"):
        return False
    types = [param.ty for param in func.params]
    return any(isinstance(type, ir.PrimType) for type in types) and any(
        isinstance(type, relax.ShapeType) for type in types
    )


def _apart(
    group: relax.Function, values: list[relax.Expr]
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Of values for a group's parameters those that are no numbers, and those that are."""
    numbers = [isinstance(param.ty, ir.PrimType) for param in group.params]
    found: tuple[list[relax.Expr], list[relax.Expr]] = ([], [])
    for value, is_number in zip(values, numbers):
        found[is_number].append(value)
    return found
