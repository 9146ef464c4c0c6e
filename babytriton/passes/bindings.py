"""What passes over a program's bindings ask about them, and change in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.relax.expr import _update_type

from babytriton.ops.primfunc import nodes
from babytriton.passes.launch_names import END

CALL_TIR = ir.Op.get("relax.call_tir")
"""The call of a kernel whose results are new tensors."""

CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
"""The call of a kernel of whose results some are in the places of arguments."""

CALL_PACKED = ir.Op.get("relax.call_pure_packed")
"""The call of a function that is not of the program, such as torch."""

_CHEAP = 2
"""FuseOps' number for functions that read given elements of their inputs, and for simpler ones."""

_EXPENSIVE = frozenset(
    {"relax.matmul", "relax.sum", "relax.prod", "relax.to_vdevice", "relax.call_pure_packed"}
    | {f"relax.nn.conv{n}d" for n in (1, 2, 3)}
)

_SAMPLE = 1024  # what a size that is known only at the call counts for


def read_by(binding: relax.Binding) -> list[relax.Var]:
    """What is computed from."""
    return list(relax.analysis.free_vars(binding.value))


def calls_kernel(binding: relax.Binding) -> bool:
    """Whether it is of a kernel's new results, for which no call has to tell sizes."""
    call = getattr(binding, "value", None)
    return isinstance(call, ir.Call) and call.op == CALL_TIR and len(call.args) == 2


def is_tensor(var: relax.Var) -> bool:
    """Whether the variable is a tensor, and no number or tuple."""
    return isinstance(var.ty, relax.TensorType)


def is_cheap(mod: IRModule, value: relax.Expr) -> bool:
    """Whether a value is as well computed again as written to memory, and read from there.

    Args:
        mod: the program, whose kernels have patterns.
        value: what a variable is bound to.
    """
    if isinstance(value, relax.If):
        return False
    if not isinstance(value, ir.Call):
        return True
    if not isinstance(value.op, ir.Op):
        return False
    if value.op == CALL_TIR:
        kernel = mod[value.args[0]]
        return kernel.attrs is not None and int(kernel.attrs.get("op_pattern", 8)) <= _CHEAP
    return str(value.op.name) not in _EXPENSIVE


def elements(var: relax.Var) -> int:
    """How many elements a tensor has, about, where sizes are symbolic."""
    return math.prod(map(about, var.ty.shape))


def about(size: ir.Expr) -> int:
    """A size, or what one counts for that is known only at the call."""
    return int(size) if isinstance(size, tirx.IntImm) else _SAMPLE


def in_order_of_calls(mod: IRModule) -> dict[str, tirx.PrimFunc]:
    """The kernels of a program by their names, those first that are called first."""
    functions = {var.name_hint: func for var, func in mod.functions_items()}
    programs = [func for func in functions.values() if isinstance(func, relax.Function)]
    called = [var.name_hint for program in programs for var in nodes(program, ir.GlobalVar)]
    return {
        name: functions[name]
        for name in dict.fromkeys([*called, *functions])
        if isinstance(functions.get(name), tirx.PrimFunc)
    }


def parts_in(block: relax.BindingBlock) -> dict[relax.Var, dict[int, relax.Var]]:
    """The parts that are taken out of tuples, by their places."""
    found: dict[relax.Var, dict[int, relax.Var]] = {}
    for binding in block.bindings:
        value = getattr(binding, "value", None)
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
            found.setdefault(value.tuple_value, {})[value.index] = binding.var
    return found


def add_kernel(
    functions: dict[ir.GlobalVar, ir.BaseFunc], name: str, func: tirx.PrimFunc
) -> ir.GlobalVar:
    """Add a kernel to the functions of a program, by a name that none of them has.

    Returns:
        The variable that calls of it name.
    """
    taken = {var.name_hint for var in functions}
    stem = name.removesuffix(END)
    names = (name, *(f"{stem}_{n}{name[len(stem) :]}" for n in range(2, len(taken) + 2)))
    var = ir.GlobalVar(next(x for x in names if x not in taken))
    _update_type(var, func.ty)
    if func.attrs and "global_symbol" in func.attrs:
        func = func.with_attr("global_symbol", var.name_hint)
    functions[var] = func
    return var


def with_blocks(
    function: relax.Function,
    blocks: Sequence[relax.BindingBlock],
    params: Sequence[relax.Var] | None = None,
) -> relax.Function:
    """The function with other bindings, and perhaps other parameters."""
    return relax.Function(
        list(function.params if params is None else params),
        relax.SeqExpr(list(blocks), function.body.body),
        *(function.ret_ty, function.is_pure, function.attrs, function.span),
    )


def replaced(expr: relax.Expr, variables: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """An expression of others in the place of variables."""
    if not variables:
        return expr
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: variables.get(var, var)))


def with_type(expr: relax.Expr, type: ir.Type) -> relax.Expr:
    """A new expression, whose type is known."""
    _update_type(expr, type)
    return expr


def call_of(kernel: ir.GlobalVar, arguments: Sequence[relax.Expr], type: ir.Type) -> ir.Call:
    """A call of a kernel for a new tensor of a type."""
    return with_type(relax.call_tir(kernel, list(arguments), out_ty=type), type)


def with_arguments(call: ir.Call, arguments: Sequence[relax.Expr]) -> ir.Call:
    """The same call with other arguments."""
    made = relax.Call(call.op, list(arguments), call.attrs, call.ty_args, call.span)
    return with_type(made, call.ty)
