"""How values are computed, whatever their places: by this a value is found again in a kernel.

Schedules put what computes a value into what reads it. What the user called the value is known
before that alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tvm import IRModule, ir, s_tir, tirx

from babytriton.passes.blocks import nodes
from babytriton.passes.intrinsics import function_name
from babytriton.passes.names import users_name

FORMS = "babytriton.forms"
"""The attribute of a kernel: the user's name of a value by its form."""

# What a tensor's part in registers is called.
_PART = re.compile(r"_(vector|part|of_row)$")


def form(expr: ir.Expr, of_load: Callable[[ir.TensorLoad], str]) -> str:
    """A text that is the same for what computes the same of the same tensors."""

    def of(part: ir.Expr) -> str:
        if isinstance(part, ir.TensorLoad):
            return of_load(part)
        if isinstance(part, ir.Var):
            return str(part.name)
        if isinstance(part, (tirx.IntImm, tirx.FloatImm, ir.StringImm)):
            return f"{part.value}"
        if isinstance(part, ir.Call):
            return f"{function_name(part)}({', '.join(map(of, part.args))})"
        fields = ("a", "b", "value", "condition", "true_value", "false_value")
        parts = [of(getattr(part, name)) for name in fields if hasattr(part, name)]
        return f"{type(part).__name__}({', '.join(parts)})"

    return of(expr)


def in_registers(load: ir.TensorLoad) -> str:
    """The form of a load as it is in a scheduled kernel."""
    return _PART.sub("", load.source.name)


def attached(mod: IRModule) -> IRModule:
    """A module whose kernels know the forms of what the user has names for."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and (found := _named(func)):
            functions[var] = func.with_attr(FORMS, found)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def of_kernel(func: tirx.PrimFunc) -> Mapping[str, str]:
    """The user's names by the forms of values."""
    found = func.attrs.get(FORMS, {}) if func.attrs else {}
    return {str(key): str(name) for key, name in found.items()}


def _named(func: tirx.PrimFunc) -> dict[str, str]:
    """The names of what a kernel's blocks pass on, by form; not of those that share a form."""
    inside: dict[tirx.Var, str] = {}
    found: dict[str, set[str]] = {}

    def of_load(load: ir.TensorLoad) -> str:
        return inside.get(load.source) or users_name(load.source) or str(load.source.name)

    for block in nodes(func, s_tir.SBlock):
        store = block.body
        if not isinstance(store, tirx.BufferStore) or block.init is not None:
            continue
        own, name = form(store.value, of_load), users_name(store.buffer)
        if name is None:
            inside[store.buffer] = own
        elif _is_plain(store):
            found.setdefault(own, set()).add(name)
    return {own: names.pop() for own, names in found.items() if len(names) == 1}


def _is_plain(store: tirx.BufferStore) -> bool:
    """Whether an element is computed from the elements at its own place."""
    places = [index for load in nodes(store.value, ir.TensorLoad) for index in load.indices]
    return all(isinstance(index, (ir.Var, tirx.IntImm)) for index in places)
