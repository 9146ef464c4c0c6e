"""The user's names for kernels and for what they write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx
from tvm.relax.expr import _update_type

from babytriton.ops.fallback import TORCH_CALL
from babytriton.ops.primfunc import is_users
from babytriton.passes.ascii_names import ascii_of, free, in_ascii, variable_name
from babytriton.passes.bindings import CALL_PACKED, CALL_TIR, parts_in
from babytriton.passes.launch_names import END, of_launch
from babytriton.passes.names import (
    RESULTS,
    has_name,
    is_given,
    of_constant,
    returned,
    users_name,
    with_vars,
)

# Names that it gives to numbers known while compiling.
_OF_CONSTANT = re.compile(r"param_\d+")

# Longer names of results do not become part of a kernel's.
_LONGEST = 40


@dataclass(frozen=True)
class _Use:
    """The calls of a kernel.

    Attributes:
        function: the function that calls it first.
        arguments: what it is given there, called what all calls have in common.
        results: what the user calls each tensor that it writes, if it does.
        places: which of the function's results each is, if it is one.
    """

    function: str
    arguments: tuple[relax.Expr, ...]
    results: tuple[str | None, ...]
    places: tuple[int | None, ...]

    @property
    def result(self) -> str | None:
        """What the user calls the one tensor that it writes, if it is one."""
        return self.results[0] if len(self.results) == 1 else None

    def with_another(self, other: _Use) -> _Use:
        """These and one more."""
        return _Use(
            self.function,
            tuple(map(_argument_of_both, self.arguments, other.arguments)),
            tuple(map(common_name, self.results, other.results)),
            tuple(mine if mine == own else None for mine, own in zip(self.places, other.places)),
        )


def _argument_of_both(first: relax.Expr, second: relax.Expr) -> relax.Expr:
    """The one of the two that has a name; one of what their names have in common if both have."""
    if not (_has_users_name(first) and _has_users_name(second)):
        return first if _has_users_name(first) else second
    name = common_name(first.name, second.name)
    return first if name == first.name else relax.Var(name or "gv", first.ty)


def common_name(first: str | None, second: str | None) -> str | None:
    """The words that two names begin with and those that they end with; None without any."""
    if first is None or second is None or first == second:
        return first if first == second else None
    words, others = first.split("_"), second.split("_")
    shortest = min(len(words), len(others))
    before = next((n for n in range(shortest) if words[n] != others[n]), shortest)
    rest = shortest - before
    after = next((n for n in range(rest) if words[-1 - n] != others[-1 - n]), rest)
    name = "_".join([*words[:before], *words[len(words) - after :]])
    return name if name.isidentifier() else None


def named(mod: IRModule) -> IRModule:
    """A module with the user's names for its kernels, and for the tensors that these write.

    A kernel is called after the function, and where that has several, after what the user calls
    its result. A kernel that is the user's own TensorIR and nothing else keeps its name. What the
    function returns without a name of its own has the function's. What passes from one kernel to
    another without any is called there what it is called here. What several calls of a kernel have
    other names for is called what these have in common.
    """
    uses: dict[ir.GlobalVar, _Use] = {}
    for kernel, use in _uses(mod):
        uses[kernel] = uses[kernel].with_another(use) if kernel in uses else use
    functions = {
        var: _with_results(_with_arguments(func, uses.get(var)), uses.get(var))
        for var, func in mod.functions_items()
    }
    functions |= _with_operands(mod, functions)
    if not all(name.isascii() for name in _names(IRModule(functions))):
        functions = {
            var: in_ascii(func) if isinstance(func, tirx.PrimFunc) else func
            for var, func in functions.items()
        }
    renamed = _renamed(mod, uses)

    def of_kernel(var: ir.GlobalVar) -> ir.GlobalVar:
        return renamed.get(var, var)

    for var, func in functions.items():
        if isinstance(func, relax.Function):
            functions[var] = tvm_ffi.structural_map(func, (ir.GlobalVar, of_kernel))
        elif var in renamed:
            functions[var] = func.with_attr("global_symbol", renamed[var].name_hint)
    functions = {of_kernel(var): func for var, func in functions.items()}
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _names(mod: IRModule) -> Iterator[str]:
    """Those that the user has given to functions and tensors."""
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            yield var.name_hint
            yield from (param.name for param in func.params)
            for block in getattr(func.body, "blocks", ()):
                yield from (binding.var.name for binding in block.bindings)
        elif isinstance(func, tirx.PrimFunc) and isinstance(func.body, s_tir.SBlockRealize):
            yield from (buffer.name for buffer in (*func.params, *func.body.block.alloc_buffers))


def _uses(mod: IRModule) -> Iterator[tuple[ir.GlobalVar, _Use]]:
    """The calls of kernels, in the order of the program."""
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        outputs = list(returned(getattr(func.body, "body", None)))
        outputs = outputs[: int((func.attrs or {}).get(RESULTS, len(outputs)))]
        for call, written in _kernels(func):
            names = ["gv" if part is None else part.name for part in written]
            results = tuple(None if is_given(name) else name for name in names)
            places = tuple(
                next((n for n, x in enumerate(outputs) if x.same_as(part)), None)
                for part in written
            )
            arguments = tuple(call.args[1].fields)
            yield call.args[0], _Use(var.name_hint, arguments, results, places)


def _kernels(func: relax.Function) -> Iterator[tuple[relax.Call, list[relax.Var | None]]]:
    """The calls of kernels, and what each tensor that these write is bound to, if it is read."""
    for block in getattr(func.body, "blocks", ()):
        parts_of = parts_in(block)
        for binding in block.bindings:
            call: Any = getattr(binding, "value", None)
            if isinstance(call, relax.Call) and call.op == CALL_TIR:
                written: list[relax.Var | None] = [binding.var]
                if not isinstance(call.ty, relax.TensorType):
                    parts = parts_of.get(binding.var, {})
                    written = [parts.get(n) for n in range(len(call.ty.fields))]
                yield call, written


def _renamed(mod: IRModule, uses: dict[ir.GlobalVar, _Use]) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """New names of kernels."""
    functions = dict(mod.functions_items())
    ours = {kernel: use for kernel, use in uses.items() if not is_users(functions[kernel])}
    taken = {var.name_hint for var in functions if var not in ours}
    taken |= {
        of_launch(var.name_hint, 0)
        for var, func in functions.items()
        if isinstance(func, tirx.PrimFunc) and var not in ours
    }
    found = {}
    for kernel, use in ours.items():
        name = use.function
        if len(ours) > 1 and use.result not in (None, name) and len(str(use.result)) <= _LONGEST:
            name = f"{name}_{use.result}"
        name = ascii_of(name)
        if not name.strip("_"):
            name = "main"  # nothing is left of it
        unique, count = name, 1
        while unique + END in taken:
            count += 1
            unique = f"{name}_{count}"
        taken.add(unique + END)
        found[kernel] = ir.GlobalVar(unique + END)
        _update_type(found[kernel], kernel.ty)
    return found


def _with_arguments(func: ir.BaseFunc, use: _Use | None) -> ir.BaseFunc:
    """A kernel of ours whose parameters are called what the user calls what it is given."""
    if use is None or is_users(func):
        return func
    return named_after(func, use.arguments)


def _with_results(func: ir.BaseFunc, use: _Use | None) -> ir.BaseFunc:
    """A kernel whose results are called what the user calls them."""
    if use is None or not isinstance(func.params[-1].ty, tirx.BufferType):
        return func
    names = [
        own or (None if place is None else _of_result(use, place))
        for own, place in zip(use.results, use.places)
    ]
    first = len(func.params) - len(names)
    taken = {_plain(param) for param in func.params[:first]}
    renamed: dict[ir.Var, ir.Var] = {}
    for param, name in zip(func.params[first:], names):
        if name is not None:
            unique = f"{name}_out" if name in taken else name
            taken.add(unique)
            renamed[param] = ir.Var(unique, param.ty)
    return with_vars(func, renamed)


def _with_operands(
    mod: IRModule, functions: Mapping[ir.GlobalVar, ir.BaseFunc]
) -> dict[ir.GlobalVar, ir.BaseFunc]:
    """Kernels that call what they read as the kernels do which write it, if the user does not."""
    names: dict[relax.Var, str] = {}
    found: dict[ir.GlobalVar, ir.BaseFunc] = {}
    met: set[ir.GlobalVar] = set()
    for function in mod.functions.values():
        if not isinstance(function, relax.Function):
            continue
        names |= _of_torch(function)
        for call, written in _kernels(function):
            kernel = call.args[0]
            params = list(functions[kernel].params)
            given = dict(zip(params, call.args[1].fields))
            taken = {_plain(param) for param in params}
            renamed = {}
            for param, operand in given.items():
                is_constant = isinstance(operand, ir.GenericConst)
                name = of_constant(operand) if is_constant else names.get(operand)
                if name in (None, _plain(param)):
                    continue
                if _is_nameless(param, operand, functions[kernel]):
                    unique = free(name, taken) if name in taken else name
                    taken.add(unique)
                    renamed[param] = ir.Var(unique, param.ty)
            if renamed and kernel not in met:
                found[kernel] = with_vars(functions[kernel], renamed)
            met.add(kernel)
            for var, param in zip(written, params[len(params) - len(written) :]):
                if var is not None and not is_given(param.name):
                    names[var] = str(param.name)
    return found


def _is_nameless(param: tirx.Var, operand: relax.Expr, kernel: ir.BaseFunc) -> bool:
    """Whether what a kernel calls a tensor that it reads says nothing about that one."""
    if isinstance(operand, ir.GenericConst):
        return _OF_CONSTANT.fullmatch(param.name) is not None
    if is_given(param.name):
        return True
    return not is_users(kernel) and isinstance(operand, relax.Var) and not has_name(operand)


def _of_torch(function: relax.Function) -> dict[relax.Var, str]:
    """What torch gives, called after the function that gives it."""
    calls: dict[relax.Var, str] = {}
    found: dict[relax.Var, str] = {}
    for block in getattr(function.body, "blocks", ()):
        for binding in block.bindings:
            value: Any = getattr(binding, "value", None)
            if isinstance(value, relax.Call) and value.op == CALL_PACKED:
                callee, *operands = value.args
                if callee.global_symbol == TORCH_CALL:
                    calls[binding.var] = operands[0].name.removeprefix("torch_")
            elif isinstance(value, relax.TupleGetItem) and value.tuple_value in calls:
                several = len(value.tuple_value.ty.fields) > 1
                name = calls[value.tuple_value]
                found[binding.var] = f"{name}_{value.index}" if several else name
    return found


def _of_result(use: _Use, place: int) -> str:
    """What a result of a function is called that has no name."""
    count = sum(other is not None for other in use.places)
    return use.function if count == 1 else f"{use.function}_{place}"


def named_after(func: tirx.PrimFunc, arguments: Sequence[ir.Expr]) -> tirx.PrimFunc:
    """A kernel whose parameters are called what the user calls the tensors that it is given."""
    given = {
        param: argument.name
        for param, argument in zip(func.params, arguments)
        if isinstance(param.ty, tirx.BufferType) and _has_users_name(argument)
    }
    read = func.params[: len(arguments)]
    taken: set[str] = set()
    names: dict[ir.Var, str] = {}
    # Names as they are come first, then those that are not ASCII.
    for param, name in sorted(given.items(), key=lambda x: not x[1].isascii()):
        if variable_name(name) not in taken:
            names[param] = variable_name(name)
            taken.add(names[param])
    for param in func.params:
        if param not in names:  # What it is called may be the name of another one now.
            plain, is_read = _plain(param), param in read
            unique = free(plain, taken) if is_read else f"{plain}_out"
            names[param] = unique if plain in taken else param.name
            taken.add(names[param])
    return with_vars(func, {x: ir.Var(new, x.ty) for x, new in names.items() if new != x.name})


def _has_users_name(argument: ir.Expr) -> bool:
    return isinstance(argument, relax.Var) and bool(argument.name) and has_name(argument)


def _plain(param: tirx.Var) -> str:
    """What a parameter will be called when all is merged."""
    return users_name(param) or str(param.name)
