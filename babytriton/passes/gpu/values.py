"""What the user has a name for has it in the kernel too, and what is computed twice has one.

For those who read the kernels: to a compiler it is all the same. The user's values are found while
TVM's functions are what the user has called; the rest is done to kernels as they are printed, where
choices become parts of expressions as well.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm_ffi import StructuralKey

from babytriton.ops.cuda_code import CODES
from babytriton.ops.primfunc import nodes
from babytriton.passes import forms
from babytriton.passes.intrinsics import dtype_of, function_name, is_pure, rewrite
from babytriton.passes.names import of_number
from babytriton.passes.statements import sequence

_NAMES = {
    tirx.Add: "sum",
    tirx.Sub: "difference",
    tirx.Mul: "product",
    tirx.Div: "quotient",
    tirx.Select: "chosen",
}
"""What results are called."""

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_NUMBERS = (*_FLOATS, "int8", "int16", "int32", "uint8", "uint16", "uint32")
_CHOICE = "if_then_else"

_LONG = ("int64", "uint64")
"""What CUDA's functions give as another type of as many bits, which is not that of the others."""

_FUNCTIONS = (ir.Call, tirx.Max, tirx.Min)

_LARGE = 2000
"""Expressions in a value that is left as it is, as nobody reads it."""


def users_values(mod: IRModule) -> IRModule:
    """Kernels in which the user's values are variables with the user's names."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        names = forms.of_kernel(func) if isinstance(func, tirx.PrimFunc) else {}
        if names:
            of_load = forms.in_registers(func)

            def name_of(part: ir.Expr, of_load: Any = of_load, names: Any = names) -> str | None:
                return names.get(forms.form(part, of_load)) if _is_result(part) else None

            named = functools.partial(_with_users_names, name_of=name_of)
            functions[var] = tvm_ffi.structural_map(func, (tirx.BufferStore, named))
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_users_names(
    store: tirx.BufferStore, name_of: Callable[[ir.Expr], str | None]
) -> tirx.Stmt:
    value, found = store.value, []
    while (known := _first_known(value, name_of)) is not None:
        part, name = known
        # Within an expression of another value it has the user's name alone.
        variable = tirx.Var(name, dtype_of(part))
        found.append((variable, part))
        value = _replaced(value, part, variable)
    renamed = {variable: of_number(variable.name, str(variable.ty.dtype)) for variable, _ in found}

    def at_last(expr: ir.Expr) -> ir.Expr:
        return tvm_ffi.structural_map(expr, (ir.Var, lambda var: renamed.get(var, var)))

    names = [tirx.Bind(renamed[variable], at_last(part)) for variable, part in found]
    return sequence([*names, tirx.BufferStore(store.buffer, at_last(value), store.indices)])


def _first_known(
    value: ir.Expr, name_of: Callable[[ir.Expr], str | None]
) -> tuple[ir.Expr, str] | None:
    """A part of a value that the user has a name for, and that is computed from no other."""
    for part, always in reversed([*_parts(value)][1:]):
        if always and (name := name_of(part)) is not None:
            return part, name
    return None


def named_values(mod: IRModule) -> IRModule:
    """Kernels whose stores compute no number twice, nor what chooses between statements."""
    mod = rewrite(mod, tirx.BufferStore, _with_names)
    return rewrite(mod, tirx.IfThenElse, _with_name_of_test)


def _with_name_of_test(stmt: tirx.IfThenElse) -> tirx.Stmt:
    """A choice between statements, after a place that it tests and these use, if there is one."""
    test = _with_choices(stmt.condition)
    place = _repeated([test])
    if not isinstance(place, tirx.Select):
        return stmt
    cases = (stmt.then_case, stmt.else_case)
    ways = [case and _with_choices_of(case, _always_read(test)) for case in cases]
    variable = of_number(_name(place), str(dtype_of(place)))
    chosen = _replaced(tirx.IfThenElse(test, *ways), place, variable)
    return sequence([tirx.Bind(variable, place), chosen])


def _with_names(store: tirx.BufferStore) -> tirx.Stmt:
    if len(nodes(store.value, ir.Expr)) > _LARGE:
        return store
    value = _with_choices(store.value)
    named: list[tuple[tirx.Var, ir.Expr]] = []
    while (repeated := _repeated([*(expr for _, expr in named), value])) is not None:
        variable = of_number(_name(repeated), str(dtype_of(repeated)))
        replaced = [(name, _replaced(expr, repeated, variable)) for name, expr in named]
        using = [i for i, (old, new) in enumerate(zip(named, replaced)) if old[1] is not new[1]]
        named = replaced
        named.insert(min(using, default=len(named)), (variable, repeated))
        value = _replaced(value, repeated, variable)
    names = [tirx.Bind(variable, expr) for variable, expr in named]
    return sequence([*names, tirx.BufferStore(store.buffer, value, store.indices)])


def _with_choices(value: ir.Expr) -> ir.Expr:
    """The value with choices as parts of expressions, where both sides can be computed.

    TVM makes branches of those that load anything.
    """
    return _with_choices_of(value, _always_read(value))


def _always_read(value: ir.Expr) -> set[StructuralKey]:
    """What is loaded in any case."""
    loads = ((part, always) for part, always in _parts(value) if isinstance(part, ir.TensorLoad))
    return {StructuralKey(load) for load, always in loads if always}


def _with_choices_of(value: Any, read: set[StructuralKey]) -> Any:
    """The same, of an expression or a statement, where some places are known to be there."""

    def is_safe(load: ir.TensorLoad) -> bool:
        return load.source.scope() == "local" or StructuralKey(load) in read

    def chosen(call: ir.Call) -> ir.Expr:
        if function_name(call) != _CHOICE:
            return call
        condition, *sides = call.args
        if dtype_of(call) in _LONG and any(nodes(sides, kind) for kind in _FUNCTIONS):
            return call
        loads = [load for side in sides for load in nodes(side, ir.TensorLoad)]
        calls = [inner for side in sides for inner in nodes(side, ir.Call)]
        is_plain = all(is_pure(inner) and function_name(inner) != _CHOICE for inner in calls)
        return tirx.Select(condition, *sides) if is_plain and all(map(is_safe, loads)) else call

    return tvm_ffi.structural_map(value, (ir.Call, chosen))


def _repeated(exprs: Sequence[ir.Expr]) -> ir.Expr | None:
    """The largest of what is computed or read in any case, and more than once; None without any."""
    counts: Counter[StructuralKey] = Counter()
    found: dict[StructuralKey, ir.Expr] = {}
    for part, always in (each for expr in exprs for each in _parts(expr)):
        if _is_result(part) or _is_read(part):
            key = StructuralKey(part)
            counts[key] += 1
            if always:
                found[key] = part
    repeated = [part for key, part in found.items() if counts[key] > 1]
    return max(repeated, key=lambda part: len(nodes(part, ir.Expr)), default=None)


def _parts(expr: ir.Expr, always: bool = True) -> Iterator[tuple[ir.Expr, bool]]:
    """What an expression is made of as it is printed, and whether each is computed in any case."""
    yield expr, always
    parts: list[Any] = []
    rest: list[Any] = []
    if isinstance(expr, ir.Call):
        parts = list(expr.args)
        if function_name(expr) == _CHOICE:
            parts, rest = parts[:1], parts[1:]
        elif function_name(expr) == "isnan":  # x != x
            parts *= 2
    elif isinstance(expr, tirx.Select):
        parts = [expr.condition, expr.true_value, expr.false_value]
    elif isinstance(expr, (tirx.And, tirx.Or)):
        parts, rest = [expr.a], [expr.b]
    elif isinstance(expr, tirx.Cast):
        parts = [expr.value]
    elif not isinstance(expr, (ir.TensorLoad, ir.Var)):
        parts = [getattr(expr, name) for name in ("a", "b") if hasattr(expr, name)]
    for inner in parts:
        if isinstance(inner, ir.Expr):
            yield from _parts(inner, always)
    for inner in rest:
        yield from _parts(inner, False)


def _is_result(expr: ir.Expr) -> bool:
    """Whether an expression is a number that takes something to compute."""
    if isinstance(expr, tirx.Select):
        return dtype_of(expr) in (*_FLOATS, *_LONG)
    if isinstance(expr, ir.Call):
        return is_pure(expr) and dtype_of(expr) in _FLOATS and function_name(expr) != _CHOICE
    return type(expr) in _NAMES and dtype_of(expr) in _FLOATS


def _is_read(expr: ir.Expr) -> bool:
    """Whether an expression is a number from memory, and not from registers."""
    is_load = isinstance(expr, ir.TensorLoad) and expr.source.scope() == "global"
    return is_load and dtype_of(expr) in _NUMBERS


def _name(expr: ir.Expr) -> str:
    if isinstance(expr, ir.TensorLoad):
        return f"{expr.source.name}_value"
    if not isinstance(expr, ir.Call):
        return _NAMES[type(expr)]
    first = expr.args[0]
    function = first.value if isinstance(first, ir.StringImm) else function_name(expr)
    if function in CODES:
        return f"{CODES[function].name}_value"
    return f"{function.strip('_').removesuffix('f')}_value"


def _replaced(expr: Any, old: ir.Expr, new: tirx.Var) -> Any:
    same = (type(old), lambda part: new if tvm_ffi.structural_equal(part, old) else part)
    return tvm_ffi.structural_map(expr, same)
