"""The user's names for tensors, kept while operators become kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import CALL_TIR, add_kernel

# Names that Relax gives to what the user has none for.
_GIVEN = re.compile(r"(gv|lv)\d*")

RESULTS = "babytriton.results"
"""Of a function that gives more than the user's results, the number of these."""

# Names that TVM gives to what its operators compute.
_TVMS = re.compile(r"compute|T_\w+|\w+_red")

# What TVM adds to the names of what passes between the parts of a kernel.
_BETWEEN = re.compile(r"_intermediate(_\d+)*$")

# What the user's names of what passes between the parts have at their ends, until all is merged.
_MARK = "_of_user"


def of_number(name: str, dtype: str) -> tirx.Var:
    """A variable of a GPU's kernel, whose ending goes where the name is free, and no word of C++.

    Args:
        name: without the ending.
        dtype: of the number.
    """
    return tirx.Var(f"{name}__local", dtype)


def is_given(name: str) -> bool:
    """Whether a name is one of Relax's."""
    return _GIVEN.fullmatch(name) is not None


Calls = Mapping[tuple[str, str], str]
"""What the user calls the results of calls, by the kernel and the place of the call."""


def of_calls(mod: IRModule) -> Calls:
    """What the user calls what each kernel gives; to be asked before operators are grouped."""
    found: dict[tuple[str, str], set[str]] = {}
    for binding, call in _calls(mod):
        name = binding.var.name
        if _is_kernel(call) and call.span is not None and not is_given(name):
            found.setdefault(_place(call), set()).add(name)
    return {place: names.pop() for place, names in found.items() if len(names) == 1}


def of_results(mod: IRModule) -> dict[str, list[str]]:
    """What each function calls what it returns; to be asked before operators are grouped."""
    return {
        var.name_hint: [getattr(x, "name", "gv") for x in returned(func.body.body)]
        for var, func in mod.functions_items()
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
    }


def with_results(mod: IRModule, results: Mapping[str, Sequence[str]]) -> IRModule:
    """A module that calls what functions return so, where TVM has given that other names."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function) or var.name_hint not in results:
            continue
        renamed = {
            x: type(x)(name, x.ty)
            for x, name in zip(returned(func.body.body), results[var.name_hint])
            if isinstance(x, relax.Var) and is_given(x.name) and not is_given(name)
        }
        if renamed:
            functions[var] = with_vars(func, renamed)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _is_kernel(call: Any) -> bool:
    """Whether a call is one of a kernel that gives one tensor."""
    is_call = isinstance(call, relax.Call) and call.op == CALL_TIR
    return is_call and isinstance(call.ty, relax.TensorType)


def _place(call: relax.Call) -> tuple[str, str]:
    span = call.span
    where = "" if span is None else f"{span.source_name.name}:{span.line}:{span.column}"
    return call.args[0].name_hint, where


def of_operators(change: tvm.transform.Pass) -> tvm.transform.Pass:
    """A pass that makes kernels of operators, whose results are called what these are called.

    So are what other kernels read of these results, where the user has no name for them.
    """

    def run(mod: IRModule, _: tvm.transform.PassContext) -> IRModule:
        operators = {}
        for binding, call in _calls(mod):
            if isinstance(call.op, ir.Op):
                operators[binding.var] = str(call.op.name).rpartition(".")[2]
        mod = change(mod)
        functions = dict(mod.functions_items())
        bound: dict[relax.Var, relax.Binding] = {}
        for binding, call in _calls(mod):
            bound[binding.var] = binding
            if call.op != CALL_TIR:
                continue
            operator, func = operators.get(binding.var), functions[call.args[0]]
            renamed: dict[ir.Var, ir.Var] = {}
            if operator and _TVMS.fullmatch(func.params[-1].name):
                renamed[func.params[-1]] = ir.Var(operator, func.params[-1].ty)
            for param, given in zip(func.params, call.args[1].fields):
                if is_given(param.name) and given in bound:
                    name = result_name(bound[given], functions) or param.name
                    renamed[param] = ir.Var(name, param.ty)
            if renamed:
                functions[call.args[0]] = with_vars(func, renamed)
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(run, opt_level=0, name="babytriton.NameAfterOperators")


def has_name(var: relax.Var) -> bool:
    """Whether a tensor has a name that is not Relax's."""
    return not is_given(var.name)


def with_name(constant: ir.GenericConst, name: str) -> ir.GenericConst:
    """A tensor that is known while compiling, and what the user calls it."""
    place = ir.Span(ir.SourceName(name), 0, 0, 0, 0)
    return ir.GenericConst(constant.value, constant.ty, place)


def of_constant(constant: ir.GenericConst) -> str:
    """What a tensor that is known while compiling is called."""
    return "constant" if constant.span is None else str(constant.span.source_name.name)


def result_name(
    binding: relax.Binding, mod: IRModule | Mapping[ir.GlobalVar, ir.BaseFunc]
) -> str | None:
    """What a tensor is called that the user has no name for; None if it has one, or is a part."""
    call = binding.value
    if has_name(binding.var) or not isinstance(call, relax.Call):
        return None
    if call.op == CALL_TIR:
        return str(mod[call.args[0]].params[-1].name)
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, ir.Op) else None


def _calls(mod: IRModule) -> Iterator[tuple[relax.Binding, relax.Call]]:
    """The calls that functions bind the results of."""
    for _, func in mod.functions_items():
        for block in getattr(getattr(func, "body", None), "blocks", ()):
            for binding in block.bindings:
                call: Any = getattr(binding, "value", None)
                if isinstance(call, relax.Call):
                    yield binding, call


def of_parts(mod: IRModule, known: Calls | None = None) -> IRModule:
    """A module whose groups of operators call what each of them gives what the user calls it.

    To be merged: TVM names what passes from one to the next after what the first one writes.

    Args:
        mod: has the groups.
        known: the names of what is computed last in a group, which TVM has given others.
    """
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs and func.attrs.get("Primitive", False):
            functions[var] = _with_named_parts(func, functions, known or {})
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_named_parts(
    func: relax.Function, functions: dict[ir.GlobalVar, ir.BaseFunc], known: Calls
) -> relax.Function:
    """The group, which calls copies that are added to the functions."""
    blocks = []
    last = set(returned(func.body.body))
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            name = binding.var.name
            call: Any = getattr(binding, "value", None)
            if _is_kernel(call) and binding.var in last and is_given(name):
                name = known.get(_place(call), name)
            if _is_kernel(call) and not is_given(name):
                kernel = functions[call.args[0]]
                renamed = {kernel.params[-1]: ir.Var(name + _MARK, kernel.params[-1].ty)}
                own = with_vars(kernel, renamed)
                copy = add_kernel(functions, call.args[0].name_hint, own)
                args = [copy, *call.args[1:]]
                call = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
                binding = relax.VarBinding(binding.var, call, binding.span)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def without_endings(mod: IRModule) -> IRModule:
    """A module whose kernels call what passes between their parts as :func:`of_parts` has it."""
    return _with_renamed(mod, lambda var: _BETWEEN.sub("", var.name))


def _with_renamed(mod: IRModule, name_of: Callable[[tirx.Var], str]) -> IRModule:
    """A module whose kernels' tensors have other names."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            found = {inner for inner in nodes(func, ir.Var) if name_of(inner) != inner.name}
            if found:
                functions[var] = with_vars(func, {x: ir.Var(name_of(x), x.ty) for x in found})
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def users_name(var: tirx.Var) -> str | None:
    """What the user calls a tensor inside a kernel; None for one without a name."""
    name = str(var.name)
    return name.removesuffix(_MARK) if name.endswith(_MARK) else None


def without_marks(mod: IRModule) -> IRModule:
    """A module whose kernels have the user's names as they are."""
    return _with_renamed(mod, lambda var: users_name(var) or var.name)


def apart(mod: IRModule) -> IRModule:
    """A module of scheduled functions that call no two tensors in memory the same."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            is_in_blocks = isinstance(func.body, s_tir.SBlockRealize)
            inner = list(func.body.block.alloc_buffers) if is_in_blocks else []
            renamed = _apart([*func.params, *(x for x in inner if x.scope() == "global")])
            functions[var] = with_vars(func, renamed) if renamed else func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _apart(tensors: Sequence[ir.Var]) -> dict[ir.Var, ir.Var]:
    """Variables in the place of those whose names others had before."""
    taken, met = {tensor.name for tensor in tensors}, set[str]()
    found: dict[ir.Var, ir.Var] = {}
    for tensor in tensors:
        if tensor.name in met:
            others = (f"{tensor.name}_{n}" for n in count(1))
            name = next(other for other in others if other not in taken)
            taken.add(name)
            found[tensor] = ir.Var(name, tensor.ty)
        met.add(tensor.name)
    return found


def returned(result: relax.Expr | None) -> Iterator[relax.Expr]:
    """What a function gives, each part of a tuple by itself."""
    if isinstance(result, relax.Tuple):
        for field in result.fields:
            yield from returned(field)
    elif result is not None:
        yield result


def with_vars(func: ir.BaseFunc, renamed: Mapping[ir.Var, ir.Var]) -> ir.BaseFunc:
    return tvm_ffi.structural_map(func, (ir.Var, lambda var: renamed.get(var, var)))
