"""Constant folding: what depends on no argument is computed while compiling, but for large tables.

A causal mask that compares an `arange` with itself would be a table in memory, as large as what it
masks. Kernels have their indices at hand: what only compares, chooses from, or does sums of these
stays a part of what reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from babytriton.passes.bindings import CALL_TIR, elements, is_tensor, read_by
from babytriton.passes.blocks import nodes
from babytriton.passes.fusion import plain_blocks
from babytriton.passes.intrinsics import function_name
from babytriton.passes.scheduling import is_scheduled

LARGE = 1 << 14
"""Elements from which on a tensor is no table."""

_Variables = Mapping[relax.Var, relax.Var]


def fold_constants(mod: IRModule) -> IRModule:
    """The program with constants for what is known while compiling.

    Args:
        mod: of calls of kernels that are not fused yet.
    """
    functions = dict(mod.functions_items())
    hidden: dict[str, dict[relax.Var, relax.Expr]] = {}
    for var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            tables = _Tables(mod, function)
            if tables.sources:
                functions[var] = tables.hidden()
                hidden[var.name_hint] = tables.sources
    if hidden:
        mod = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    mod = relax.transform.FoldConstant()(mod)
    if not hidden:
        return mod
    functions = {
        var: _shown(function, hidden.get(var.name_hint, {}))
        for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


class _Tables:
    """The large tensors of a function that are computed from nothing, in short.

    Args:
        mod: has the kernels.
        function: of the program.

    Attributes:
        sources: the calls that these begin with, by parameters that are to stand for them.
    """

    def __init__(self, mod: IRModule, function: relax.Function) -> None:
        self._mod, self._function = mod, function
        known: dict[relax.Var, relax.Expr] = {}
        folded: set[relax.Var] = set()
        self._large: set[relax.Var] = set()
        for block in function.body.blocks:
            for binding in block.bindings:
                if isinstance(block, relax.DataflowBlock) and self._is_short(binding, known):
                    known[binding.var] = binding.value
                if _is_kernel(binding) and all(x in folded for x in read_by(binding)):
                    folded.add(binding.var)
                else:
                    read = [x for x in read_by(binding) if x in known]
                    self._large.update(x for x in read if elements(x) >= LARGE)
        wanted = set(self._large)
        for var in reversed(list(known)):
            if var in wanted:
                wanted.update(known[var].args[1].fields)
        self._made: dict[relax.Var, relax.Var] = {}
        self.sources: dict[relax.Var, relax.Expr] = {}
        for var, value in known.items():
            if var not in wanted:
                continue
            if not value.args[1].fields:
                self._made[var] = source = relax.Var(var.name, var.ty)
                self.sources[source] = value
            elif var not in self._large:
                self._made[var] = relax.DataflowVar(var.name, var.ty)

    def _is_short(self, binding: relax.Binding, known: Mapping[relax.Var, relax.Expr]) -> bool:
        """Whether a binding computes a tensor from known ones, in no longer than a load takes."""
        if not _is_kernel(binding) or not isinstance(binding.var, relax.DataflowVar):
            return False
        call = binding.value
        if not is_tensor(binding.var) or not all(x in known for x in call.args[1].fields):
            return False
        kernel = self._mod[call.args[0]]
        blocks = [] if is_scheduled(kernel) else plain_blocks(kernel)
        return bool(blocks) and all(
            isinstance(block.body, tirx.BufferStore)
            and block.init is None
            and all(function_name(x) == "if_then_else" for x in nodes(block.body.value, ir.Call))
            and not nodes(block.body.value, tirx.RShift)  # sums of 64 bits that wrap are long
            for block in blocks
        )

    def hidden(self) -> relax.Function:
        """The function with parameters for what large tables begin with, so that none is known."""
        function = self._function
        begun = {var: made for var, made in self._made.items() if var in self._large}
        blocks = []
        for block in function.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                var = binding.var
                if var in begun:
                    continue
                if var in self._large:
                    bindings.append(_reading(binding, var, self._made))
                    continue
                bindings.append(_reading(binding, var, begun))
                made = self._made.get(var)
                if made is not None and made not in self.sources:
                    bindings.append(_reading(binding, made, self._made))
            blocks.append(type(block)(bindings))
        return relax.Function(
            [*function.params, *self.sources],
            relax.SeqExpr(blocks, function.body.body),
            *(function.ret_ty, function.is_pure, function.attrs, function.span),
        )


def _is_kernel(binding: relax.Binding) -> bool:
    call = getattr(binding, "value", None)
    return isinstance(call, ir.Call) and call.op == CALL_TIR and len(call.args) == 2


def _reading(binding: relax.Binding, var: relax.Var, made: _Variables) -> relax.Binding:
    """A binding of a variable to what others make of it."""
    if not isinstance(binding, relax.VarBinding):
        return binding
    return relax.VarBinding(var, _replaced(binding.value, made), binding.span)


def _shown(function: ir.BaseFunc, sources: Mapping[relax.Var, relax.Expr]) -> ir.BaseFunc:
    """The function that computes what it was given, in each block that reads it."""
    if not sources:
        return function
    count = len(function.params) - len(sources)
    calls = dict(zip(function.params[count:], sources.values()))
    blocks = []
    for block in function.body.blocks:
        read = {var for binding in block.bindings for var in read_by(binding)}
        made = {x: relax.DataflowVar(x.name, x.ty) for x in calls if x in read}
        first = [relax.VarBinding(var, calls[param]) for param, var in made.items()]
        rest = [_reading(binding, binding.var, made) for binding in block.bindings]
        blocks.append(type(block)([*first, *rest]))
    return relax.Function(
        function.params[:count],
        relax.SeqExpr(blocks, function.body.body),
        *(function.ret_ty, function.is_pure, function.attrs, function.span),
    )


def _replaced(expr: relax.Expr, variables: _Variables) -> relax.Expr:
    if not variables:
        return expr
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: variables.get(var, var)))
