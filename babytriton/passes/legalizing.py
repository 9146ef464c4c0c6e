"""TensorIR functions for operators, where TVM's own are not what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, te, tirx, topi
from tvm.relax import BlockBuilder

from babytriton.passes.blocks import nodes


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


LEGALIZATIONS = {"relax.reshape": _reshape}
"""By operator."""
