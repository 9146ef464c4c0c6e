"""Calls of TensorIR functions: which parameters are results, and of what sizes and dtypes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.ir import PrimType
from tvm.tirx import PrimFunc

from babytriton.ops import primfunc
from babytriton.ops.convention import as_kernel
from babytriton.ops.refusals import IllTyped, Unavailable, UnsupportedDtype, reason
from babytriton.ops.site import Site
from babytriton.ops.value import REFUSALS, NeedsConstant, Scalar, Value
from babytriton.types import TensorType, find_dtype

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

Written = tuple[Value, Value]
"""A tensor that a function was given to write into, and its contents after the call."""


def is_prim_func(fn: Any) -> bool:
    """Whether it is a TensorIR function, such as ``@T.prim_func`` makes."""
    return isinstance(fn, PrimFunc)


def call_by_name(
    builder: Builder, name: str, func: PrimFunc, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Written]]:
    """Emit a call of a TensorIR function as a user writes it.

    Parameters left out are results in memory of their own. Buffers that are given and that the
    function writes are written: the second part of the result says what to, for the caller to
    let the user's tensors change.

    Args:
        builder: to emit into.
        name: what the user calls the function.
        func: any TensorIR function whose parameters are buffers and numbers.
        args: values and numbers, for its parameters in order.
        kwargs: likewise, by the parameters' names.

    Returns:
        The results left out, or else the tensors written; a tuple where there are several.

    Raises:
        IllTyped: the arguments do not fit the parameters.
        Unavailable: the function cannot be part of the program.
    """
    arguments = _bound(func, args, kwargs)
    access = primfunc.accesses(func)
    fresh = [i for i, argument in enumerate(arguments) if argument is None]
    for i in fresh:
        _check_result(func.params[i], access)
    buffers = [i for i, param in enumerate(func.params) if param in access]
    written = [i for i in buffers if i not in fresh and access[func.params[i]].writes]
    if not fresh and not written:
        # What goes by address cannot be seen; results stand last.
        written = [i for i in buffers if access[func.params[i]].by_pointer][-1:]
    outputs = sorted(fresh + written)
    if not outputs:
        raise Unavailable("it writes to none of its buffers", "let its last buffer be the result")
    made = call_prim_func(builder, name, func, arguments, outputs)
    by_place = dict(zip(outputs, made))
    results = tuple(by_place[i] for i in fresh or written)
    changed = [(arguments[i], by_place[i]) for i in written if type(arguments[i]) is Value]
    return results if len(results) > 1 else results[0], changed


def call_prim_func(
    builder: Builder,
    name: str,
    func: PrimFunc,
    arguments: Sequence[Any],
    outputs: Sequence[int],
) -> list[Value]:
    """Emit a call of a TensorIR function, which fuses with its neighbours where TVM can.

    Args:
        builder: to emit into.
        name: of the function, for messages and for the kernel.
        func: its parameters are buffers, whose sizes may be symbolic, and numbers.
        arguments: for each parameter a value or a number; ``None`` for an output that starts with
            nothing in it. An output with an argument starts as a copy of it, unless the function
            writes all of it without reading it.
        outputs: which parameters are written, in order.

    Returns:
        The tensor that each output holds in the end, in memory of its own.

    Raises:
        IllTyped: the arguments do not fit the parameters.
        NeedsConstant: a run-time number is a size of a buffer.
        Unavailable: the function is scheduled for another kind of device.
        UnsupportedDtype: an output has a dtype that kernels cannot hold.
    """
    device = builder.device.type
    if device == "cpu" and primfunc.is_bound_to_threads(func):
        why = "its loops are the threads of a GPU, and the program runs on the CPU"
        raise Unavailable(why, "leave the loops unbound: they are scheduled for the target")
    started = _started(func, arguments, outputs)
    if started and primfunc.is_scheduled(func, device):
        kept = func.params[started[0]].name
        why = f"it is scheduled already, and may need what `{kept}` held before"
        raise Unavailable(why, f"leave `{kept}` out of the call, or its loops as they are")
    constants = _Match(name, func, arguments).constants
    try:
        plain, places = _fitted(func, constants, arguments)
        types = [_type(places[i]) for i in outputs]
        if all(0 in type.shape for type in types):
            return builder.empties(types)
        written, before = [places[i] for i in outputs], [places[i] for i in started]
        kernel = as_kernel(plain, written, before, device)
    except REFUSALS:
        raise
    except Exception as error:  # whatever TVM makes of a function that it cannot rewrite
        instead = "write it in loops over its buffers, with T.sblock around each statement"
        raise Unavailable(reason(error), instead) from error
    inputs = [i for i in places if i not in outputs]
    exprs = [_expr(func.params[i], arguments[i]) for i in (*started, *inputs)]
    kernel = primfunc.as_users(kernel)
    made = Site(builder, None).kernel(_identifier(name, func), kernel, exprs, *types)
    parts = [made]
    if len(types) > 1:
        parts = [builder.emit(relax.TupleGetItem(made, i)) for i in range(len(types))]
    return [builder.value(part, builder.meta(type)) for part, type in zip(parts, types)]


def _started(func: PrimFunc, arguments: Sequence[Any], outputs: Sequence[int]) -> list[int]:
    """The outputs that hold something before, of which the function keeps or reads some."""
    access = primfunc.accesses(func)
    seen = {i: access[func.params[i]] for i in outputs if arguments[i] is not None}
    return [i for i, use in seen.items() if use.reads or use.by_pointer or not use.writes_all]


def _fitted(
    func: PrimFunc, constants: Mapping[ir.Var, tirx.PrimExpr], arguments: Sequence[Any]
) -> tuple[PrimFunc, dict[int, ir.Var]]:
    """The function for these arguments, over buffers of known sizes alone.

    Also its parameter for each of the original's that is still one.
    """
    scalars = {
        param: tirx.decl_buffer((), str(argument.expr.ty.dtype), name=param.name)
        for param, argument in zip(func.params, arguments)
        if isinstance(param.ty, PrimType) and isinstance(argument, Value)
    }
    plain = primfunc.with_buffers(primfunc.specialized(func, constants), scalars)
    kept = [i for i, param in enumerate(func.params) if param not in constants]
    return plain, dict(zip(kept, plain.params))


class _Match:
    """Fits arguments to the parameters of a function.

    Attributes:
        constants: what the parameters that are numbers, and the sizes in buffers, stand for.
    """

    def __init__(self, name: str, func: PrimFunc, arguments: Sequence[Any]) -> None:
        self._name = name
        self.constants: dict[ir.Var, tirx.PrimExpr] = {}
        self._found_in: dict[ir.Var, str] = {}
        pairs = list(zip(func.params, arguments))
        for param, argument in pairs:
            if isinstance(param.ty, PrimType):
                self._number(param, argument)
            elif not tirx.is_buffer_var(param):
                raise Unavailable(
                    f"its parameter `{param.name}` is a bare pointer",
                    "make it a buffer, by T.Buffer or T.match_buffer",
                )
        for param, argument in pairs:
            if tirx.is_buffer_var(param) and argument is not None:
                self._tensor(param, argument)
        for param, argument in pairs:
            if tirx.is_buffer_var(param):
                self._sizes(param, argument)
        self._refuse_run_time_sizes(pairs)

    def _number(self, param: ir.Var, argument: Any) -> None:
        dtype = str(param.ty.dtype)
        if isinstance(argument, Value):
            fits = argument.meta.ndim == 0 and (
                "float" in dtype or not argument.meta.dtype.is_floating_point
            )
        else:
            fits = isinstance(argument, (bool, int)) or (
                isinstance(argument, float) and "float" in dtype
            )
        if not fits:
            self._misfit(param, dtype, argument)
        if not isinstance(argument, Value):
            _check_range(param.name, dtype, argument)
            self.constants[param] = tirx.const(argument, dtype)
            self._found_in[param] = f"`{param.name}`"

    def _tensor(self, param: ir.Var, argument: Any) -> None:
        """Check the rank and dtype of an argument, and learn the sizes that have a name."""
        dtype = find_dtype(str(param.ty.dtype))
        is_number = isinstance(argument, (bool, int, float)) and not param.ty.shape
        if not isinstance(argument, Value) and not is_number:
            self._misfit(param, _described(param), argument)
        if is_number:
            return
        wrong_dtype = dtype is None or argument.meta.dtype != dtype.torch
        if wrong_dtype or argument.meta.ndim != len(param.ty.shape):
            self._misfit(param, _described(param), argument)
        for dim, size in zip(param.ty.shape, _sizes_of(argument)):
            if isinstance(dim, ir.Var):
                self._learn(dim, param, size)

    def _learn(self, dim: ir.Var, param: ir.Var, size: int) -> None:
        known = self.constants.get(dim)
        where = f"`{param.name}`"
        if known is None:
            self.constants[dim] = tirx.IntImm(str(dim.ty.dtype), size)
            self._found_in[dim] = where
        elif int(known) != size:
            first = self._found_in[dim]
            raise IllTyped(f"`{dim.name}` is {int(known)} in {first}, and {size} in {where}")

    def _sizes(self, param: ir.Var, argument: Any) -> None:
        """Check all sizes of a buffer, or that those of a result are known."""
        shape = [self._value(dim) for dim in param.ty.shape]
        if argument is None:
            for dim, size in zip(param.ty.shape, shape):
                if not isinstance(size, tirx.IntImm):
                    raise IllTyped(
                        f"the size `{dim}` of its result `{param.name}` does not follow from "
                        f"the arguments: give `{param.name}` a tensor to write into as well"
                    )
        elif isinstance(argument, Value):
            for dim, size, given in zip(param.ty.shape, shape, _sizes_of(argument)):
                if not isinstance(size, tirx.IntImm):
                    raise IllTyped(f"the size `{dim}` of `{param.name}` cannot be solved for")
                if int(size) != given:
                    self._misfit(param, _described(param), argument)
        if any(not isinstance(stride, tirx.IntImm) for stride in param.ty.strides):
            raise Unavailable(
                f"its buffer `{param.name}` has strides of its own",
                "leave them out: tensors are contiguous inside a program",
            )

    def _refuse_run_time_sizes(self, pairs: Sequence[tuple[ir.Var, Any]]) -> None:
        used = {
            var
            for param, _ in pairs
            if tirx.is_buffer_var(param)
            for dim in param.ty.shape
            for var in primfunc.nodes(dim, ir.Var)
        }
        for param, argument in pairs:
            if param in used and isinstance(argument, Scalar):
                raise NeedsConstant(argument.arguments)

    def _value(self, dim: tirx.PrimExpr) -> tirx.PrimExpr:
        constants = self.constants
        found = tvm_ffi.structural_map(dim, (ir.Var, lambda var: constants.get(var, var)))
        return sym.Analyzer().simplify(found)

    def _misfit(self, param: ir.Var, expected: str, argument: Any) -> None:
        given = argument
        if isinstance(argument, Value):
            given = "a float" if isinstance(argument, Scalar) else TensorType.of(argument.meta)
        raise IllTyped(f"`{param.name}` of `{self._name}` is {expected}, and {given} is given")


def _bound(func: PrimFunc, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The argument for each parameter, ``None`` where there is none."""
    names = [param.name for param in func.params]
    if len(args) > len(names):
        raise IllTyped(f"it takes {', '.join(names)}: {len(args)} arguments are given")
    found: list[Any] = [*args, *[None] * (len(names) - len(args))]
    for name, value in kwargs.items():
        if names.count(name) != 1 or name in names[: len(args)]:
            known = f"it takes {', '.join(names)}"
            raise IllTyped(f"{known}: there is no `{name}` left to give")
        found[names.index(name)] = value
    return found


def _check_result(param: ir.Var, access: Mapping[ir.Var, primfunc.Access]) -> None:
    """Refuse a parameter that was left out and is no result."""
    seen = access.get(param)
    if seen is None or not (seen.writes or seen.by_pointer):
        raise IllTyped(f"an argument for `{param.name}` is missing")
    if seen.reads and not seen.starts_anew and not seen.by_pointer:
        raise IllTyped(
            f"it adds to what `{param.name}` held before: give `{param.name}` the tensor to "
            "start from"
        )


def _sizes_of(value: Value) -> tuple[int, ...]:
    """The sizes of a tensor, which are constants of a program that such a function is part of."""
    return tuple(int(size) for size in value.meta.shape)


def _check_range(name: str, dtype: str, number: Any) -> None:
    known = find_dtype(dtype)
    if known is None or known.torch.is_floating_point or known.torch == torch.bool:
        return
    limits = torch.iinfo(known.torch)
    if not limits.min <= number <= limits.max:
        raise IllTyped(f"{number} does not fit `{name}`, an {dtype}")


def _expr(param: ir.Var, argument: Any) -> relax.Expr:
    if isinstance(argument, Value):
        return argument.expr
    return relax.const(argument, str(param.ty.dtype))


def _type(param: ir.Var) -> TensorType:
    dtype = find_dtype(str(param.ty.dtype))
    if dtype is None:
        raise UnsupportedDtype(str(param.ty.dtype))
    return TensorType(tuple(int(size) for size in param.ty.shape), dtype.torch)


def _described(param: ir.Var) -> str:
    """The type of a buffer as messages show it: ``f32[n, 4]``."""
    known = find_dtype(str(param.ty.dtype))
    name = known.short if known else str(param.ty.dtype)
    return f"{name}[{', '.join(_size(size) for size in param.ty.shape)}]"


def _size(size: tirx.PrimExpr) -> str:
    return str(int(size)) if isinstance(size, tirx.IntImm) else str(size)


def _identifier(name: str, func: PrimFunc) -> str:
    own = func.attrs.get("global_symbol") if func.attrs else None
    found = re.sub(r"\W+", "_", str(own or name)).strip("_")
    return found if found.isidentifier() else f"kernel_{found}"
