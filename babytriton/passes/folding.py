"""Constant folding: what depends on no argument is computed while compiling, but for some tables.

A causal mask that compares an `arange` with itself would be a table in memory, as large as what it
masks. Kernels have their indices at hand: what only compares, chooses from, or does sums of these
stays a part of what reads it (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, relax, te, tirx

from babytriton.passes.alike import Alike
from babytriton.passes.bindings import (
    add_kernel,
    calls_kernel,
    elements,
    is_tensor,
    read_by,
    replaced,
    with_arguments,
    with_blocks,
)
from babytriton.passes.duplicates import same_as_before
from babytriton.passes.names import has_name, with_name
from babytriton.passes.tables import SMALL, Computed, known_in, shown
from babytriton.passes.uniform import with_opaque_zero

_LEFT, _MOST = 1 << 10, 1 << 20
"""Elements up to which TVM folds what is computed from nothing; and up to which this does."""


def fold_constants(mod: IRModule, large: int, shares: bool) -> IRModule:
    """The program with constants for what is known while compiling.

    Args:
        mod: of calls of kernels that are not fused yet.
        large: elements from which on a tensor is no table, if it is computed in short.
        shares: whether it is one all the same where several kernels read it.
    """
    functions = dict(mod.functions_items())
    hidden: dict[str, Mapping[relax.Var, relax.Expr]] = {}
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = function = _each_once(mod, function)
            computed = Computed(mod, function, large, shares)
            found = computed.hidden()
            if computed.sources:
                functions[var], hidden[var.name_hint] = found, computed.sources
    folded = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    if not hidden:
        return _by_tvm(folded)
    called = dict.fromkeys(call.args[0] for x in hidden.values() for call in x.values())
    kernels = {var: with_opaque_zero(mod[var]) for var in called}
    folded = _by_tvm(relax.transform.DeadCodeElimination()(folded))
    functions = {
        var: shown(function, hidden.get(var.name_hint, {}))
        for var, function in folded.functions_items()
    }
    functions |= kernels  # which nothing called meanwhile
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _each_once(mod: IRModule, function: relax.Function) -> relax.Function:
    """The function with one binding for each small tensor that is known while compiling.

    The layers of a network have one mask, and TVM compiles what computes it for each anew.
    """
    folded = known_in(function)

    def is_small(var: relax.Var) -> bool:
        is_inside = var in folded and isinstance(var, relax.DataflowVar)
        return is_inside and is_tensor(var) and elements(var) < SMALL

    parts = [[x for x in block.bindings if is_small(x.var)] for block in function.body.blocks]
    called = dict.fromkeys(binding.value.args[0] for part in parts for binding in part)
    kernels = same_as_before(mod, called)
    same: dict[relax.Var, relax.Var] = {}
    for part in parts:
        alike: Alike[relax.Var] = Alike()
        for binding in part:
            kernel, *given = replaced(binding.value, same).args
            value = with_arguments(binding.value, [kernels.get(kernel, kernel), *given])
            first = alike.first(value, binding.var)
            if not first.same_as(binding.var):
                same[binding.var] = first
    if not same:
        return function
    blocks = [
        type(block)([x for x in block.bindings if x.var not in same])
        for block in function.body.blocks
    ]
    whole = replaced(relax.SeqExpr(blocks, function.body.body), same)
    return relax.Function(
        *(function.params, whole, function.ret_ty, function.is_pure, function.attrs, function.span)
    )


def _by_tvm(mod: IRModule) -> IRModule:
    """The program with what is known as constants, which are called as the user calls them."""
    functions = dict(mod.functions_items())
    given = {var: _tensors_of_calls(function) for var, function in functions.items()}
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = _with_large_sources(functions, function)
    mod = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    mod = relax.transform.FoldConstant()(mod)
    functions = {var: _with_names(func, given.get(var, {})) for var, func in mod.functions_items()}
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_large_sources(
    functions: dict[ir.GlobalVar, ir.BaseFunc], function: relax.Function
) -> relax.Function:
    """The function with large tensors that TVM folds, where tables are made of them.

    It leaves to the run what is large and computed from nothing. What is computed from that, as the
    tables of a rotary embedding are, each call would compute.

    Args:
        functions: of the program; kernels are added that read a number, which they do not need.
        function: one of them.
    """
    known = known_in(function)
    sources = {
        binding.var
        for block in function.body.blocks
        for binding in block.bindings
        if binding.var in known and not read_by(binding) and _is_large(binding.var)
    }
    if not sources:
        return function
    wanted: set[relax.Var] = set()
    for block in reversed(function.body.blocks):
        for binding in reversed(block.bindings):
            is_table = binding.var in wanted and elements(binding.var) <= _MOST
            if binding.var not in known or (is_table and binding.var not in sources):
                read = [x for x in read_by(binding) if x in known]
                wanted.update(x for x in read if binding.var in known or x not in sources)
    made: dict[relax.Var, relax.Var] = {}
    blocks = []
    for block in function.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if binding.var in wanted & sources:
                var = made[binding.var] = relax.DataflowVar(binding.var.name, binding.var.ty)
                value = _of_number(functions, binding.value)
                bindings += [binding, relax.VarBinding(var, value)]
            elif binding.var in wanted:
                value = replaced(binding.value, made)
                bindings.append(relax.VarBinding(binding.var, value, binding.span))
            else:
                bindings.append(binding)
        blocks.append(type(block)(bindings))
    return with_blocks(function, blocks)


def _is_large(var: relax.Var) -> bool:
    """Whether a tensor of a known size has more elements than what TVM folds."""
    return (
        is_tensor(var)
        and all(isinstance(n, tirx.IntImm) for n in var.ty.shape)
        and _LEFT < elements(var) <= _MOST
    )


def _of_number(functions: dict[ir.GlobalVar, ir.BaseFunc], call: ir.Call) -> ir.Call:
    """The call of a kernel that reads nothing, as one of the same kernel that is given a number."""
    number = te.placeholder((), "float32", "number")
    copy = te.compute((), lambda: number(), name="copy")
    param = te.create_prim_func([number, copy], "int64").params[0]
    func = functions[call.args[0]]
    given = tirx.PrimFunc([param, *func.params], func.body, func.ret_type, func.attrs)
    kernel = add_kernel(functions, call.args[0].name_hint, given)
    return with_arguments(call, [kernel, relax.Tuple([relax.const(0.0, "float32")])])


def _tensors_of_calls(function: ir.BaseFunc) -> dict[str, list[relax.Expr]]:
    """What the calls of kernels read, by the names of what these give."""
    return {
        binding.var.name: list(binding.value.args[1].fields)
        for block in getattr(getattr(function, "body", None), "blocks", ())
        for binding in block.bindings
        if calls_kernel(binding)
    }


def _with_names(function: ir.BaseFunc, given: Mapping[str, list[relax.Expr]]) -> ir.BaseFunc:
    """The function with the user's names for what its calls read, and is a constant now."""
    named: dict[tuple[ir.GenericConst, str], ir.GenericConst] = {}

    def called(expr: relax.Expr, before: relax.Expr) -> relax.Expr:
        is_named = isinstance(before, relax.Var) and has_name(before)
        if not is_named or not isinstance(expr, ir.GenericConst):
            return expr
        return named.setdefault((expr, before.name), with_name(expr, before.name))

    blocks = []
    for block in function.body.blocks if given else ():
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if calls_kernel(binding):
                call = binding.value
                read = call.args[1].fields
                fields = [called(*x) for x in zip(read, given.get(binding.var.name, read))]
                value = with_arguments(call, [call.args[0], relax.Tuple(fields)])
                binding = relax.VarBinding(binding.var, value, binding.span)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    return with_blocks(function, blocks) if named else function
