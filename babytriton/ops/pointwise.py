"""What rows that work element by element share: their operands, and how results are rounded.

Half precision follows torch: operands become float32, the operator runs there, and its result is
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, te, tirx

from babytriton.ops.numerics import is_true, opmath
from babytriton.ops.refusals import IllTyped
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64, is_one, is_symbolic
from babytriton.ops.table import Callee, Op
from babytriton.ops.value import Scalar, Value
from babytriton.types import dtype_of

_MODULES = (torch, torch.Tensor, torch.special, torch.nn.functional)


def spelled(*names: str) -> tuple[Callee, ...]:
    """Every callable of these names: in torch, on tensors, in torch.special and in functional."""
    found = (getattr(module, name, None) for name in names for module in _MODULES)
    return tuple(dict.fromkeys(call for call in found if callable(call)))


def common_dtype(input: Any, other: Any) -> torch.dtype:
    """What two operands are converted to, by torch's promotion rules."""
    return torch.result_type(_sample(input), _sample(other))


def number(value: Any, dtype: torch.dtype) -> Any:
    """A Python number as torch converts it: integers wrap, floats overflow to infinity."""
    wide = torch.float64 if isinstance(value, float) else None
    try:
        return torch.tensor(value, dtype=wide, device="cpu").to(dtype).item()
    except RuntimeError as error:
        raise IllTyped(str(error)) from error


def constant(value: Any, dtype: torch.dtype) -> tirx.PrimExpr:
    """A Python number as an element of a dtype."""
    return tirx.const(number(value, dtype), dtype_of(dtype).name)


def convert(element: tirx.PrimExpr, dtype: torch.dtype) -> tirx.PrimExpr:
    """An element converted as ``Tensor.to`` converts."""
    name, target = str(element.ty.dtype), dtype_of(dtype)
    if name == target.name:
        return element
    if dtype == torch.bool:
        return is_true(element)
    if "float" in name and not dtype.is_floating_point and target.bits < 32:
        # Out-of-range floats wrap, as in C through a wide integer, instead of being poison.
        element = tirx.Cast("int64", element)
    return tirx.Cast(target.name, element)


def elementwise(
    site: Site,
    name: str,
    body: Callable[..., Any],
    *operands: Any,
    dtype: torch.dtype | tuple[torch.dtype, ...] | None = None,
    rounded: bool = False,
) -> relax.Var:
    """One computation over broadcast operands.

    Args:
        site: of the call.
        name: of the computation.
        body: gives one element of the result from one element of each operand.
        operands: values and Python numbers.
        dtype: that operands are converted to first, or one for each; the result's, if not given.
            The body then sees float32 where it is a half precision.
        rounded: whether numbers and tensors without dimensions are rounded to a half precision
            first, too. Arithmetic takes them as they are, comparisons round.
    """
    dtypes = dtype if isinstance(dtype, tuple) else (dtype or site.dtype,) * len(operands)
    values = [x for x in operands if isinstance(x, Value)]

    def fn(*tensors: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            found = iter([_read(site, x, tensor, index) for x, tensor in zip(values, tensors)])
            elements = [
                _operand(x, next(found), dtype, rounded)
                if isinstance(x, Value)
                else _number_element(x, dtype, rounded)
                for x, dtype in zip(operands, dtypes)
            ]
            return convert(body(*elements), site.dtype)

        return compute(site.shape, element, name)

    return site.te(name, fn, *(x.expr for x in values))


def relaxed(
    site: Site,
    fn: Callable[..., relax.Expr],
    *operands: Any,
    dtype: torch.dtype | None = None,
) -> relax.Expr:
    """A Relax operator over operands converted to a dtype, the result's if not given.

    Operands that are all of the result's half precision stay in it: a single correctly rounded
    operator gives the same there as through float32.
    """
    dtype = dtype or site.dtype
    exact = fn in _CORRECTLY_ROUNDED and all(
        isinstance(x, Value) and x.meta.dtype == dtype for x in operands
    )
    math = dtype if exact or fn in _ORDER else opmath(dtype)
    exprs = [_operand_expr(site, x, dtype, math) for x in operands]
    return site.cast(fn(*exprs), site.dtype)


def unary(name: str, fn: Callable[..., Any], gradient: Callable[..., Any], *calls: Callee) -> Op:
    """A row of one operand: ``fn`` is a Relax operator, or gives an element from an element."""

    def build(site: Site, input: Any) -> Any:
        if _is_relax(fn):
            return relaxed(site, fn, input)
        return elementwise(site, name, fn, input)

    return Op(name, calls or spelled(name), build, gradient=gradient)


def binary(name: str, fn: Callable[..., Any], gradient: Callable[..., Any], *calls: Callee) -> Op:
    """A row of two operands of one dtype, either of which may be a number."""

    def build(site: Site, input: Any, other: Any) -> Any:
        if _is_relax(fn):
            return relaxed(site, fn, input, other)
        return elementwise(site, name, fn, input, other)

    return Op(name, calls or spelled(name), build, scalars=True, gradient=gradient)


_CORRECTLY_ROUNDED = (relax.op.add, relax.op.subtract, relax.op.multiply)
_ORDER = (
    relax.op.equal,
    relax.op.not_equal,
    relax.op.less,
    relax.op.less_equal,
    relax.op.greater,
    relax.op.greater_equal,
)


def _number_element(value: Any, dtype: torch.dtype, rounded: bool) -> tirx.PrimExpr:
    if is_symbolic(value):
        return convert(convert(int64(value), dtype), opmath(dtype))
    return constant(number(value, dtype) if rounded else value, opmath(dtype))


def _is_relax(fn: Callable[..., Any]) -> bool:
    return getattr(fn, "__module__", "").startswith("tvm.relax")


def _sample(operand: Any) -> Any:
    if isinstance(operand, Scalar):
        return operand.kind(1)
    if is_symbolic(operand):
        return 1
    return operand.meta if isinstance(operand, Value) else operand


def _read(
    site: Site, value: Value, tensor: te.Tensor, index: tuple[tirx.Var, ...]
) -> tirx.PrimExpr:
    """The element of an operand for one of the result."""
    shape = value.meta.shape
    skipped = len(index) - len(shape)
    own = zip(shape, site.shape[skipped:], index[skipped:])
    # What does not broadcast is read at the same index: TVM fuses that with what is before.
    return tensor(*(int64(0) if n == 1 and not is_one(size) else i for n, size, i in own))


def _operand(
    value: Value, element: tirx.PrimExpr, dtype: torch.dtype, rounded: bool
) -> tirx.PrimExpr:
    if value.meta.ndim or rounded:
        element = convert(element, dtype)
    return convert(element, opmath(dtype))


def _operand_expr(site: Site, operand: Any, dtype: torch.dtype, math: torch.dtype) -> relax.Expr:
    if not isinstance(operand, Value):
        return site.number(operand if is_symbolic(operand) else number(operand, math), math)
    expr = operand.expr
    if operand.meta.ndim:
        expr = site.cast(expr, dtype)
    return site.cast(expr, math)
