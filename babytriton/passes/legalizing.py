"""TensorIR functions for operators, where TVM's own are not what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, te, tirx, topi
from tvm.relax import BlockBuilder

from babytriton.ops.primfunc import nodes


def _reshape(builder: BlockBuilder, call: ir.Call) -> relax.Expr:
    """A tensor in another shape."""
    tensor, shape = call.args
    has_variables = bool(nodes([tensor.ty.shape, shape], ir.Var))
    fn = _reshaped if has_variables else topi.reshape
    return builder.call_te(fn, tensor, shape, primfunc_name_hint="reshape")


def _reshaped(x: te.Tensor, shape: Sequence[ir.Expr]) -> te.Tensor:
    """As TVM's own, but for the index along the first dimension.

    TVM's is a remainder, though the position is in the tensor: with symbolic sizes, none that
    follows can know that.
    """

    def element(*indices: ir.Expr) -> ir.Expr:
        position: ir.Expr = tirx.const(0, "int64")
        for index, size in zip(indices, shape):
            position = position * size + index
        parts: list[ir.Expr] = []
        for size in reversed(x.shape[1:]):
            parts.insert(0, tirx.floormod(position, size))
            position = tirx.floordiv(position, size)
        return x(*[position, *parts][: len(x.shape)])

    return te.compute(shape, element, name="T_reshape", tag=topi.tag.INJECTIVE)


def _full(builder: BlockBuilder, call: ir.Call) -> relax.Expr:
    """A tensor with one number everywhere.

    TVM's own takes neither infinities nor NaN.
    """
    shape, number = call.args
    if not isinstance(number, ir.GenericConst):
        return builder.call_te(topi.full, list(shape), call.ty.dtype, number)
    filled = tirx.const(number.value.numpy().item(), str(call.ty.dtype.dtype))
    return builder.call_te(_filled, shape, filled, primfunc_name_hint="full")


def _filled(shape: Sequence[ir.Expr], number: ir.Expr) -> te.Tensor:
    return te.compute(shape, lambda *_: number, name="T_full", tag=topi.tag.ELEMWISE)


LEGALIZATIONS = {"relax.full": _full, "relax.reshape": _reshape}
"""By operator."""
