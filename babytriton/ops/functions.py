"""TensorIR functions that a program calls: from tensor expressions, with the sizes they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, s_tir, te, tirx
from tvm.relax.expr import te_tensor

INJECTIVE = {"op_pattern": 2}
"""What makes FuseOps take a function for one that reads given elements of its inputs."""


def from_te(
    fn: Callable[..., Any], inputs: Sequence[relax.Expr], attrs: Mapping[str, Any] | None = None
) -> tuple[tirx.PrimFunc, list[relax.Expr], list[ir.Type]]:
    """A tensor expression as a function, what to call it with, and the types of its results.

    Args:
        fn: takes a ``te.Tensor`` for each tensor and a variable for each number; returns a
            ``te.Tensor``, or a list of them.
        inputs: Relax expressions of tensors and numbers.
        attrs: of the function.
    """
    # A tensor that is given twice is one parameter: FuseTIR fails on two of symbolic shapes.
    distinct: list[relax.Expr] = []
    for x in inputs:
        if not any(x.same_as(other) for other in distinct):
            distinct.append(x)
    parameters = [_parameter(x) for x in distinct]
    places = [next(i for i, other in enumerate(distinct) if other.same_as(x)) for x in inputs]
    found = fn(*(parameters[place] for place in places))
    outs = list(found) if isinstance(found, (list, tuple)) else [found]
    made = te.create_prim_func([*parameters, *outs], "int64").without_attr("global_symbol")
    function = _in_operators(made)
    if attrs:
        function = function.with_attrs(attrs)
    return function, distinct, [relax.TensorType(out.shape, out.dtype) for out in outs]


_ARITHMETIC = {"add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul, "div": tirx.Div}
_OPERATOR = "babytriton.float."
_CALL = ir.Op.get("tirx.call_pure_extern")


def in_calls(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """An element whose arithmetic on floats is in calls, until a function is made of it.

    TVM's simplifier, which runs then, takes floats for real numbers: of infinity, `x - x` is not 0,
    and of NaN neither is `x * 0`.
    """

    def of(name: str) -> Callable[[Any], Any]:
        def call(own: Any) -> Any:
            dtype = str(own.ty.dtype)
            is_float = dtype.startswith(("float", "bfloat"))
            return tirx.call_pure_extern(dtype, _OPERATOR + name, own.a, own.b) if is_float else own

        return call

    return tvm_ffi.structural_map(value, [(kind, of(name)) for name, kind in _ARITHMETIC.items()])


def _in_operators(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its arithmetic as it is."""

    def operator(call: ir.Call) -> Any:
        if call.op != _CALL or not str(call.args[0].value).startswith(_OPERATOR):
            return call
        name, *operands = call.args
        return _ARITHMETIC[str(name.value).removeprefix(_OPERATOR)](*operands)

    return function.with_body(tvm_ffi.structural_map(function.body, (ir.Call, operator)))


def _parameter(expr: relax.Expr) -> Any:
    if isinstance(expr.ty, relax.TensorType):
        return te_tensor(expr, {}, expr.name if isinstance(expr, ir.Var) else "constant")
    return tirx.Var(expr.name, expr.ty.dtype)


def closed(
    function: tirx.PrimFunc, inputs: int, variables: Collection[tirx.Var]
) -> tuple[tirx.PrimFunc, list[tirx.Var]]:
    """A function that shares no variable with its caller, and what it must be given in addition.

    A variable that is a dimension of one of its buffers takes its value from there.

    Args:
        function: may use the caller's variables.
        inputs: how many parameters come before its results; what is added goes between.
        variables: the caller's.
    """
    if not variables:
        return function, []
    buffers = [x for x in function.params if isinstance(x.ty, tirx.BufferType)]
    shapes = [n for buffer in buffers for n in buffer.shape]
    bound = [n for n in shapes if isinstance(n, ir.Var)]
    used: list[ir.Var] = []
    for root in (function.body, *shapes):
        tvm_ffi.structural_walk(root, [(ir.Var, used.append)], order="post")
    missing = [
        variable
        for variable in variables
        if any(variable.same_as(x) for x in used) and not any(variable.same_as(x) for x in bound)
    ]
    parameters = list(function.params)
    parameters[inputs:inputs] = missing
    whole = tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs)
    return s_tir.renew_defs(whole), missing
