"""The parameters of what a GPU runs, in the order that a person would give them.

TVM has them by the alphabet. What a kernel reads comes first, then what it writes, each as the
function that launches it has it, then what such functions hand from one kernel to the next; sizes
come last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import IRModule, ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.launch_names import launcher_of

_END = "_ptr"
"""What TVM adds to the names of buffers for those of their addresses."""

_Order = Sequence[int]
"""For each place among the parameters, which of them it gets."""


def names_of_parameters(mod: IRModule) -> dict[str, list[str]]:
    """The names of each function's parameters, before kernels are taken out of it."""
    functions = mod.functions_items()
    return {
        var.name_hint: [param.name for param in func.params]
        for var, func in functions
        if isinstance(func, tirx.PrimFunc)
    }


def in_order(mod: IRModule, names: Mapping[str, Sequence[str]]) -> IRModule:
    """Kernels, and what launches them, with the kernels' parameters in order.

    Args:
        mod: has both.
        names: those of the parameters of the functions that kernels were taken out of.
    """
    orders = {
        var.name_hint: _order(func, names.get(launcher_of(var.name_hint), ()))
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and "tirx.kernel_launch_params" in func.attrs
    }

    def of_launch(call: ir.Call) -> ir.Call:
        place, order = _launched(call, orders)
        if order is None:
            return call
        first = place + 1
        given = list(call.args)
        moved = [given[first + n] for n in order]
        args = [*given[:first], *moved, *given[first + len(order) :]]
        return ir.Call(call.op, args, call.attrs, call.ty_args, call.span, call.ty)

    functions = {}
    for var, func in mod.functions_items():
        order = orders.get(var.name_hint)
        if order is not None:
            params = [func.params[n] for n in order]
            func = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs, func.span)
        elif isinstance(func, tirx.PrimFunc):
            func = tvm_ffi.structural_map(func, (ir.Call, of_launch))
        functions[var] = func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _order(func: tirx.PrimFunc, names: Sequence[str]) -> _Order:
    """Of a kernel's parameters, by the names that a function has for its own."""
    written = {store.buffer.name for store in nodes(func.body, tirx.BufferStore)}

    def place(n: int) -> tuple[bool, bool, int]:
        param = func.params[n]
        name = param.name.removesuffix(_END)
        is_number = not isinstance(param.ty, ir.PointerType)
        return is_number, name in written, names.index(name) if name in names else len(names)

    return sorted(range(len(func.params)), key=place)


def _launched(call: ir.Call, orders: Mapping[str, _Order]) -> tuple[int, _Order | None]:
    """Where a call names the kernel that it launches, and the order of its parameters."""
    for place, arg in enumerate(call.args):
        if isinstance(arg, ir.StringImm) and arg.value in orders:
            return place, orders[arg.value]
    return 0, None
