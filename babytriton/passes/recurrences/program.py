"""A program's loops, found and replaced.

A kernel in each step of a loop is a launch in each step. Where no step needs what another element
has become in the one before, as in the returns of reinforcement learning, in moving averages, in
state spaces or in an iteration of Newton's, one kernel has the loop inside: a thread runs all steps
on its own elements, with the states in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, relax
from tvm.ir import IRModule
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.passes.bindings import add_kernel, replaced
from babytriton.passes.drivers import Counted, calls_itself, driver_of
from babytriton.passes.recurrences.loop import Loop
from babytriton.passes.recurrences.step import StandsAside
from babytriton.passes.uses import Uses


def loops_in_kernels(mod: IRModule) -> IRModule:
    """A program with kernels in the place of loops whose steps work on elements for themselves.

    Args:
        mod: a program of fused kernels.
    """
    if "vdevice" in mod.global_infos:
        return mod
    drivers: dict[str, Counted] = {}
    for var, func in mod.functions_items():
        name = var.name_hint
        if isinstance(func, relax.Function) and calls_itself(mod, name):
            driver = driver_of(mod, name)
            if isinstance(driver, Counted):
                drivers[name] = driver
    functions = dict(mod.functions_items())
    has_changed = False
    for var in _callees_first(mod) if drivers else ():
        if var.name_hint not in drivers:
            changed = _Replacing(functions, drivers, functions[var]).function()
            has_changed |= changed is not functions[var]
            functions[var] = changed
    if not has_changed:
        return mod
    found = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(found)


def _callees_first(mod: IRModule) -> list[ir.GlobalVar]:
    """The functions of a program, each behind those that it calls: inner loops first."""
    found: dict[ir.GlobalVar, None] = {}
    seen: set[ir.GlobalVar] = set()

    def visit(var: ir.GlobalVar) -> None:
        if var in seen or not isinstance(mod[var], relax.Function):
            return
        seen.add(var)
        for callee in nodes(mod[var].body, ir.GlobalVar):
            visit(callee)
        found[var] = None

    for var, _ in mod.functions_items():
        visit(var)
    return list(found)


class _Replacing:
    """Replaces the loops of one function.

    Args:
        functions: of the program; kernels are added.
        drivers: those that run the steps of loops.
        func: the function.
    """

    def __init__(
        self,
        functions: dict[ir.GlobalVar, ir.BaseFunc],
        drivers: Mapping[str, Counted],
        func: relax.Function,
    ) -> None:
        self._functions, self._drivers, self._func = functions, drivers, func
        self._uses = Uses.of(func)
        self._parts: dict[relax.Var, dict[int, relax.Expr]] = {}
        self._same: dict[relax.Var, relax.Expr] = {}

    def function(self) -> relax.Function:
        """The function with calls of kernels, or as it is."""
        func = self._func
        body = self._body(func.body)
        if body is func.body:
            return func
        body = replaced(body, self._same)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)

    def _body(self, body: relax.Expr) -> relax.Expr:
        if not isinstance(body, relax.SeqExpr):
            return body
        blocks, has_changed = [], False
        for block in body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                made = self._binding(binding)
                has_changed |= made is not None
                bindings += [binding] if made is None else made
            blocks.append(type(block)(bindings))
        if not has_changed:
            return body
        found = relax.SeqExpr(blocks, body.body, body.span)
        _update_type(found, body.ty)
        return found

    def _binding(self, binding: relax.Binding) -> list[relax.Binding] | None:
        """What takes the place of a binding; None where it stays."""
        value = getattr(binding, "value", None)
        if isinstance(value, relax.If):
            branches = self._body(value.true_branch), self._body(value.false_branch)
            if branches[0] is value.true_branch and branches[1] is value.false_branch:
                return None
            made = relax.If(value.cond, *branches, value.span)
            _update_type(made, value.ty)
            return [relax.VarBinding(binding.var, made, binding.span)]
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._parts:
            self._same[binding.var] = self._parts[value.tuple_value][int(value.index)]
            return []
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.GlobalVar):
            return None
        if value.op.name_hint not in self._drivers:
            return None
        try:
            return self._loop(binding.var, value)
        except StandsAside:
            return None

    def _loop(self, var: relax.Var, call: ir.Call) -> list[relax.Binding]:
        """The call of a kernel in the place of one of a loop's."""
        driver = self._drivers[call.op.name_hint]
        types = list(var.ty.fields)
        is_whole = bool(self._uses.reads[var])
        wanted = set(range(len(types))) if is_whole else self._uses.parts.get(var, set())
        loop = Loop.of(self._functions, driver, call, self._uses)
        kernel, arguments, given, same = loop.kernel(wanted)
        name = call.op.name_hint
        added = add_kernel(self._functions, name, kernel)
        out = [types[n] for n in given]
        made = relax.op.call_tir(added, relax.Tuple(arguments), out if len(out) > 1 else out[0])
        type = ir.TupleType(out) if len(out) > 1 else out[0]
        _update_type(made, type)
        names = [self._name(var, n) for n in given]
        parts: dict[int, relax.Expr] = dict(same)
        result = relax.Var(names[0] if len(out) == 1 else var.name, type)
        bindings: list[relax.Binding] = [relax.VarBinding(result, made, call.span)]
        if len(out) == 1:
            parts[given[0]] = result
        else:
            for place, (n, each) in enumerate(zip(given, names)):
                part = relax.Var(each, types[n])
                bindings.append(relax.VarBinding(part, relax.TupleGetItem(result, place)))
                parts[n] = part
        if is_whole:
            whole = relax.Tuple([parts[n] for n in range(len(types))])
            _update_type(whole, var.ty)
            bindings.append(relax.VarBinding(var, whole))
        self._parts[var] = parts
        return bindings

    def _name(self, var: relax.Var, place: int) -> str:
        """What the function calls a part of a tuple."""
        parts = (
            str(name.name)
            for name, value in self._uses.values.items()
            if isinstance(value, relax.TupleGetItem)
            and value.tuple_value.same_as(var)
            and int(value.index) == place
        )
        return next(parts, str(var.name))
