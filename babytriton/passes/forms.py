"""How values are computed, whatever their places: by this a value is found again in a kernel.

Schedules put what computes a value into what reads it. What the user called the value is known
before that alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tvm import IRModule, ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.intrinsics import function_name
from babytriton.passes.names import users_name

FORMS = "babytriton.forms"
"""The attribute of a kernel: the user's name of a value by its form."""

_LONGEST = 4000  # letters of a form that others are made of

# What a tensor's part in registers is called, and what is one number for a row.
_PART = re.compile(r"_(vector|part)$")
_OF_ROW = "_of_row"


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
        if isinstance(part, tirx.Cast):
            return f"Cast({part.ty.dtype}, {of(part.value)})"
        fields = ("a", "b", "value", "condition", "true_value", "false_value")
        parts = [of(getattr(part, name)) for name in fields if hasattr(part, name)]
        return f"{type(part).__name__}({', '.join(parts)})"

    return of(expr)


def in_registers(func: tirx.PrimFunc) -> Callable[[ir.TensorLoad], str]:
    """The form of a load as it is in a scheduled kernel."""
    params = {param.name for param in func.params}

    def of_load(load: ir.TensorLoad) -> str:
        name = str(load.source.name)
        if load.source.scope() != "local":
            return f"{name}[]"  # from any place
        # Of a parameter, one number for a row may be that of any element.
        of_row = name.removesuffix(_OF_ROW)
        return _PART.sub("", name if of_row in params else of_row)

    return of_load


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
        if name is None and len(own) <= _LONGEST:
            inside[store.buffer] = own
        elif name is None:
            continue  # of what is computed from another several times, a form doubles
        elif _is_plain(store):
            found.setdefault(own, set()).add(name)
    return {own: names.pop() for own, names in found.items() if len(names) == 1}


def _is_plain(store: tirx.BufferStore) -> bool:
    """Whether an element is computed from the elements at its own place."""
    loads = nodes(store.value, ir.TensorLoad)
    return all(is_own_place(load, list(store.indices)) for load in loads)


def is_own_place(load: ir.TensorLoad, places: Sequence[ir.Expr]) -> bool:
    """Whether a load is at the place of the element that is computed, or of those it is for.

    Args:
        load: any.
        places: the indices of the element.
    """
    numbers = []
    for index, extent in zip(load.indices, load.source.shape):
        at = [
            n
            for n, place in enumerate(places)
            if isinstance(index, ir.Var) and index.same_as(place)
        ]
        if not at and not (isinstance(extent, tirx.IntImm) and int(extent) == 1):
            return False
        numbers += at
    return numbers == sorted(numbers)
