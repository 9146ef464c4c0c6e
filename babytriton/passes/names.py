"""The user's names for what kernels write."""

from __future__ import annotations

import re

import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from babytriton.passes.blocks import nodes

_CALL_TIR = ir.Op.get("relax.call_tir")

# Names that Relax gives to what the user has none for.
_GIVEN = re.compile(r"(gv|lv)\d*")


def results_named(mod: IRModule) -> IRModule:
    """A module whose kernels call their results as the user does.

    What the user's function returns without a name of its own has the function's.
    """
    functions = dict(mod.functions_items())
    named: set[str] = set()
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        results = nodes(getattr(func.body, "body", ()), ir.Var)
        for block in getattr(func.body, "blocks", ()):
            for binding in block.bindings:
                kernel, name = _kernel(binding), binding.var.name
                if kernel is None or kernel.name_hint in named:
                    continue
                if _GIVEN.fullmatch(name):
                    if not any(binding.var.same_as(result) for result in results):
                        continue
                    name = var.name_hint
                functions[kernel] = _with_result(functions[kernel], name)
                named.add(kernel.name_hint)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _kernel(binding: relax.Binding) -> ir.GlobalVar | None:
    """The kernel of a binding whose value is one tensor that a kernel writes."""
    value = getattr(binding, "value", None)
    if not isinstance(value, relax.Call) or value.op != _CALL_TIR:
        return None
    return value.args[0] if isinstance(value.ty, relax.TensorType) else None


def _with_result(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    result, taken = func.params[-1], {param.name for param in func.params[:-1]}
    if not isinstance(result.ty, tirx.BufferType):
        return func
    renamed = ir.Var(f"{name}_out" if name in taken else name, result.ty)
    return tvm_ffi.structural_map(
        func, (ir.Var, lambda var: renamed if var.same_as(result) else var)
    )
