"""Relax's own library functions, called by their names from the user's code."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from babytriton.ops.primfunc import nodes
from babytriton.ops.refusals import IllTyped, Unavailable, UnsupportedDtype, reason
from babytriton.ops.site import Site, type_of
from babytriton.ops.value import NeedsConstant, Scalar, Value, map_values, values_in
from babytriton.types import TensorType, dtype_of, find_dtype

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

_ELEMENTS: dict[Callable[..., Any], tuple[str, ...]] = {relax.op.clip: ("min", "max")}
"""Parameters that are annotated as tensors and take numbers."""

_INTERNAL = ("base", "builtin", "ccl", "distributed", "memory", "vm")
"""Submodules whose functions no program of a user's is written in."""

_LEGALIZE = tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.LegalizeOps()])

_TORCH = "torch has a function for most of them, which is compiled or runs through torch"


def is_library_function(fn: Any) -> bool:
    """Whether it is a function of ``tvm.relax.op`` or of one of its submodules."""
    module = getattr(fn, "__module__", None) or ""
    return isinstance(fn, types.FunctionType) and f"{module}.".startswith("tvm.relax.op.")


def call_library(
    builder: Builder, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Emit a call of a Relax library function. Relax infers the type of its result.

    Args:
        builder: to emit into.
        fn: the function.
        args: values and Python objects; numbers in the place of tensors become constants of the
            dtype that the tensors have.
        kwargs: likewise.

    Returns:
        A value, or a tuple of them.

    Raises:
        IllTyped: Relax refuses the arguments.
        NeedsConstant: a run-time number stands where a constant must.
        Unavailable: there is no kernel for it, or its result is no tensor of known size.
        UnsupportedDtype: the result has a dtype that kernels cannot hold.
    """
    if fn.__module__.split(".")[3] in _INTERNAL:
        raise Unavailable("it is part of how TVM runs a program, and computes nothing", _TORCH)
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        raise IllTyped(str(error)) from error
    operand = _Operands(builder, fn, (args, kwargs))
    for name, argument in bound.arguments.items():
        bound.arguments[name] = operand(name, argument)
    try:
        expr = fn(*bound.args, **bound.kwargs)
    except (IllTyped, NeedsConstant):
        raise
    except Exception as error:
        raise IllTyped(reason(error)) from error
    if not isinstance(expr, ir.Expr):
        raise Unavailable(f"it gives a {type(expr).__name__} and no tensor", _TORCH)
    try:
        emitted = builder.emit(expr)
    except Exception as error:
        raise IllTyped(reason(error)) from error
    result = _result(builder, emitted)
    found = [TensorType.of(value.meta) for value in values_in(result)]
    if found and all(0 in type.shape for type in found):
        empties = iter(builder.empties(found))
        return map_values(result, lambda _: next(empties))
    _check_has_kernels(expr, emitted.ty)
    return result


class _Operands:
    """Takes the arguments of one call to what the function wants."""

    def __init__(self, builder: Builder, fn: Callable[..., Any], arguments: Any) -> None:
        self._site = Site(builder, None)
        self._parameters = inspect.signature(fn).parameters
        self._elements = _ELEMENTS.get(fn, ())
        dtypes = [v.meta.dtype for v in values_in(arguments) if not isinstance(v, Scalar)]
        # Of a condition and two choices, those of the choices.
        promoted = functools.reduce(torch.promote_types, dtypes) if dtypes else None
        self._dtype = promoted or torch.get_default_dtype()

    def __call__(self, name: str, argument: Any) -> Any:
        if name in self._elements:
            return self._number(argument)
        if isinstance(argument, (bool, int, float)):
            takes_tensor = self._parameters[name].annotation is ir.Expr
            return self._constant(argument) if takes_tensor else argument
        if isinstance(argument, torch.dtype):
            return self._named(argument)
        return map_values(argument, self._expr)

    def _expr(self, value: Value) -> relax.Expr:
        return self._site.cast(value.expr, self._dtype) if isinstance(value, Scalar) else value.expr

    def _constant(self, number: float) -> relax.Expr:
        self._check(number)
        return relax.const(number, dtype_of(self._dtype).name)

    def _number(self, number: Any) -> Any:
        if isinstance(number, Scalar):
            raise NeedsConstant(number.arguments)
        if not isinstance(number, (bool, int, float)):
            return map_values(number, self._expr)
        self._check(number)
        return relax.prim_value(number, dtype_of(self._dtype).name)

    def _check(self, number: float) -> None:
        """Refuse a number that the tensors' dtype cannot hold."""
        name = dtype_of(self._dtype).name
        if self._dtype.is_floating_point:
            return
        is_bool = self._dtype == torch.bool
        low, high = (0, 1) if is_bool else _limits(self._dtype)
        if isinstance(number, float) or not low <= number <= high:
            raise IllTyped(f"{number} is no {name}, which its tensors are: Relax converts nothing")

    def _named(self, dtype: torch.dtype) -> str:
        known = find_dtype(dtype)
        if known is None:
            raise UnsupportedDtype(str(dtype).removeprefix("torch."))
        return known.name


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _check_has_kernels(expr: ir.Expr, type: ir.Type) -> None:
    """Refuse what no kernel is made of, where there is still a line of the user's to show."""
    inputs = relax.analysis.free_vars(expr)
    fresh = {var: ir.Var(var.name, var.ty) for var in inputs}
    body = tvm_ffi.structural_map(expr, (ir.Var, lambda var: fresh.get(var, var)))
    alone = relax.Function(list(fresh.values()), body, type, is_pure=True)
    try:
        mod = _LEGALIZE(tvm.IRModule({"main": alone}))
    except Exception as error:
        raise Unavailable(f"TVM makes no kernel of it: {reason(error)}", _TORCH) from error
    for call in nodes(mod["main"].body, ir.Call):
        if isinstance(call.op, ir.Op) and call.op.name != "relax.call_tir":
            raise Unavailable(f"TVM makes no kernel of {call.op.name}", _TORCH)


def _result(builder: Builder, expr: relax.Expr) -> Any:
    if isinstance(expr.ty, relax.TupleType):
        parts = range(len(expr.ty.fields))
        return tuple(_result(builder, builder.emit(relax.TupleGetItem(expr, i))) for i in parts)
    if not isinstance(expr.ty, relax.TensorType):
        raise Unavailable("its result is no tensor", _TORCH)
    if find_dtype(str(expr.ty.dtype)) is None:
        raise UnsupportedDtype(str(expr.ty.dtype))
    if expr.ty.shape is None or not all(isinstance(n, tirx.IntImm) for n in expr.ty.shape):
        why = "the size of its result is known only at run time"
        raise Unavailable(why, "call torch's outside of the compiled function")
    type: TensorType = type_of(expr)
    return builder.value(expr, builder.meta(type))
