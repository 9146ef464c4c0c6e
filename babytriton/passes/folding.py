"""Constant folding: what depends on no argument is computed while compiling, but for some tables.

A causal mask that compares an `arange` with itself would be a table in memory, as large as what it
masks. Kernels have their indices at hand: what only compares, chooses from, or does sums of these
stays a part of what reads it (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, relax, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.alike import Alike
from babytriton.passes.bindings import (
    calls_kernel,
    elements,
    is_tensor,
    read_by,
    replaced,
    with_arguments,
    with_blocks,
    with_type,
)
from babytriton.passes.duplicates import same_as_before
from babytriton.passes.evaluation import can_run, evaluated
from babytriton.passes.names import has_name, with_name
from babytriton.passes.tables import SMALL, Computed, known_in, shown
from babytriton.passes.uniform import with_opaque_zero

_LEFT = 1 << 10
"""Elements up to which what is computed from nothing is a table."""

_MOST = 1 << 24
"""Elements that a table has at most."""

_Constants = Mapping[relax.Var, ir.GenericConst]


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
        return _with_tables(folded)
    called = dict.fromkeys(call.args[0] for x in hidden.values() for call in x.values())
    kernels = {var: with_opaque_zero(mod[var]) for var in called}
    folded = _with_tables(relax.transform.DeadCodeElimination()(folded))
    functions = {
        var: shown(function, hidden.get(var.name_hint, {}))
        for var, function in folded.functions_items()
    }
    functions |= kernels  # which nothing called meanwhile
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _each_once(mod: IRModule, function: relax.Function) -> relax.Function:
    """The function with one binding for each small tensor that is known while compiling.

    The layers of a network have one mask, which would be a table for each.
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


def _with_tables(mod: IRModule) -> IRModule:
    """The program with constants for what is known."""
    functions = dict(mod.functions_items())
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            functions[var] = _with_own_tables(mod, _with_tensors_inside(function))
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _with_tensors_inside(function: relax.Function) -> relax.Function:
    """The function whose calls are given the tensors that it has, and no variables for these."""
    bindings = nodes(function, relax.VarBinding)
    given = {x.var: x.value for x in bindings if isinstance(x.value, ir.GenericConst)}
    constants = {
        var: with_name(value, var.name) if has_name(var) else value for var, value in given.items()
    }
    if not constants:
        return function
    inside = {var for var in constants if isinstance(var, relax.DataflowVar)}
    return with_blocks(function, _with_constants(function.body, constants, inside).blocks)


def _with_own_tables(mod: IRModule, function: relax.Function) -> relax.Function:
    known = _known_bindings(mod, function)
    if not known:
        return function
    folded = _folded(known)
    left = _read_besides(function, folded)
    tables = [x.var for x in known if x.var in folded & left]
    constants = evaluated(mod, _needed(known, tables), tables) if tables else {}
    body = _with_constants(function.body, constants, {x.var for x in known} - left)
    return with_blocks(function, body.blocks)


def _known_bindings(mod: IRModule, function: relax.Function) -> list[relax.Binding]:
    """What can be computed while compiling, in order."""
    known: set[relax.Var] = set()
    found = []
    for block in nodes(function, relax.DataflowBlock):
        for binding in block.bindings:
            is_kernel = calls_kernel(binding) and is_tensor(binding.var)
            if not is_kernel or not known.issuperset(read_by(binding)):
                continue
            if _is_table(binding.var) and can_run(mod[binding.value.args[0]]):
                known.add(binding.var)
                found.append(binding)
    return found


def _is_table(var: relax.Var) -> bool:
    """Whether a tensor is of a known size that is not too large for one that programs have."""
    return all(isinstance(n, tirx.IntImm) for n in var.ty.shape) and elements(var) <= _MOST


def _folded(known: list[relax.Binding]) -> set[relax.Var]:
    """What is no work of the run, of what can be computed while compiling.

    What is large and computed from nothing is left to the run: to write it is no more than to read
    it. What is computed from that, as the tables of a rotary embedding are, is not.
    """
    return {
        binding.var
        for binding in known
        if binding.value.args[1].fields or elements(binding.var) <= _LEFT
    }


def _read_besides(function: relax.Function, folded: set[relax.Var]) -> set[relax.Var]:
    """What a function reads, but for what it folds, or gives to others."""
    bindings = [*nodes(function, relax.VarBinding), *nodes(function, relax.MatchCast)]
    read = {var for binding in bindings if binding.var not in folded for var in read_by(binding)}
    return read.union(x.var for x in bindings if not isinstance(x.var, relax.DataflowVar))


def _needed(known: list[relax.Binding], tables: list[relax.Var]) -> list[relax.Binding]:
    """What tables are computed by, in order."""
    needed = set(tables)
    for binding in reversed(known):
        if binding.var in needed:
            needed.update(read_by(binding))
    return [binding for binding in known if binding.var in needed]


def _with_constants(
    body: relax.SeqExpr, constants: _Constants, unread: set[relax.Var]
) -> relax.SeqExpr:
    """A body, and those of its branches, with constants in the place of what they are."""
    blocks = []
    for block in body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            constant = constants.get(binding.var)
            if binding.var in unread:
                continue
            if constant is None:
                bindings.append(_reading(binding, constants, unread))
            elif not isinstance(binding.var, relax.DataflowVar):
                bindings.append(relax.VarBinding(binding.var, constant, binding.span))
        blocks.append(type(block)(bindings))
    return with_type(relax.SeqExpr(blocks, body.body, body.span), body.ty)


def _reading(
    binding: relax.Binding, constants: _Constants, unread: set[relax.Var]
) -> relax.Binding:
    """A binding that is not known, which reads constants."""
    value = binding.value
    is_branch = isinstance(value, relax.If)
    if not is_branch and constants.keys().isdisjoint(read_by(binding)):
        return binding
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, replaced(value, constants), binding.ty, binding.span)
    if is_branch:
        branches = (
            _with_constants(x, constants, unread) for x in (value.true_branch, value.false_branch)
        )
        made = relax.If(replaced(value.cond, constants), *branches, value.span)
        return relax.VarBinding(binding.var, with_type(made, value.ty), binding.span)
    return relax.VarBinding(binding.var, replaced(value, constants), binding.span)
