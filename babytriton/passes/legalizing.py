"""TensorIR functions for operators, where TVM's own are not what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, te, tirx, topi
from tvm.relax import BlockBuilder

from babytriton.ops.functions import INJECTIVE
from babytriton.ops.joining import by_halves
from babytriton.ops.primfunc import nodes
from babytriton.ops.sizes import int64
from babytriton.passes.reshape_kernels import reshaped


def _reshape(builder: BlockBuilder, call: ir.Call) -> relax.Expr:
    """A tensor in another shape."""
    tensor, shape = call.args
    # TVM takes a function for more than that whose indices have sizes in them.
    attrs = INJECTIVE if nodes([tensor.ty.shape, shape], ir.Var) else None
    hint = "reshape"
    return builder.call_te(reshaped, tensor, shape, primfunc_name_hint=hint, primfunc_attrs=attrs)


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


def _stack(builder: BlockBuilder, call: ir.Call) -> relax.Expr:
    """Several tensors along an axis of their own.

    TVM's own asks for one after the other.
    """
    (whole,) = call.args
    if isinstance(whole, relax.Tuple):
        tensors = list(whole.fields)
    else:
        tensors = [builder.emit(relax.TupleGetItem(whole, n)) for n in range(len(whole.ty.fields))]
    return builder.call_te(_stacked, tensors, int(call.attrs.axis), primfunc_name_hint="stack")


def _stacked(parts: Sequence[te.Tensor], axis: int) -> te.Tensor:
    shape = list(parts[0].shape)
    shape.insert(axis, int64(len(parts)))

    def element(*indices: ir.Expr) -> ir.Expr:
        number = indices[axis]

        def is_before(first: int, part: int) -> ir.Expr:
            is_one = part == first + 1
            return tirx.EQ(number, int64(first)) if is_one else number < int64(part)

        own = (*indices[:axis], *indices[axis + 1 :])
        return by_halves([part(*own) for part in parts], is_before)

    return te.compute(shape, element, name="stack", tag=topi.tag.INJECTIVE)


LEGALIZATIONS = {"relax.full": _full, "relax.reshape": _reshape, "relax.stack": _stack}
"""By operator."""
