"""TensorIR functions for operators, where TVM's own are not what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from tvm import ir, relax, te, tirx, topi
from tvm.relax import BlockBuilder

from babytriton.ops.functions import INJECTIVE
from babytriton.ops.joining import by_halves
from babytriton.ops.primfunc import nodes
from babytriton.ops.sizes import int64
from babytriton.passes.factors import are_as_many


def _reshape(builder: BlockBuilder, call: ir.Call) -> relax.Expr:
    """A tensor in another shape."""
    tensor, shape = call.args
    has_variables = bool(nodes([tensor.ty.shape, shape], ir.Var))
    fn = _reshaped if has_variables else topi.reshape
    # TVM takes a function for more than that whose indices have sizes in them.
    attrs = INJECTIVE if has_variables else None
    hint = "reshape"
    return builder.call_te(fn, tensor, shape, primfunc_name_hint=hint, primfunc_attrs=attrs)


def _reshaped(x: te.Tensor, shape: Sequence[ir.Expr]) -> te.Tensor:
    """As TVM's own, but by groups of axes that hold as many elements on both sides.

    TVM's takes all axes for one, and its index along the first for a remainder, though the position
    is in the tensor: with symbolic sizes, none that follows can know what becomes of the others.
    """
    groups = _groups(list(x.shape), list(shape))

    def element(*indices: ir.Expr) -> ir.Expr:
        own: list[ir.Expr] = []
        for old, new in groups:
            own += _places([x.shape[n] for n in old], [(indices[n], shape[n]) for n in new])
        return x(*own)

    return te.compute(shape, element, name="T_reshape", tag=topi.tag.INJECTIVE)


def _groups(old: list[ir.Expr], new: list[ir.Expr]) -> list[tuple[range, range]]:
    """Axes of two shapes of one tensor that hold as many elements, as few together as can be."""
    cuts = _cuts(old, new)
    i, j = cuts[-1]
    # Torch has checked that as many are between the last two cuts, in ways that may not show here.
    from_right = _cuts(old[i:][::-1], new[j:][::-1])
    cuts += [(len(old) - n, len(new) - m) for n, m in reversed(from_right)]
    return [
        (range(n, end), range(m, other_end))
        for (n, m), (end, other_end) in pairwise(cuts)
        if (n, m) != (end, other_end)
    ]


def _cuts(old: list[ir.Expr], new: list[ir.Expr]) -> list[tuple[int, int]]:
    """Numbers of axes, from the first on, up to which both shapes surely hold as many elements."""
    cuts = [(0, 0)]
    ends = product(range(len(old) + 1), range(len(new) + 1))
    for n, m in sorted(ends, key=sum):
        i, j = cuts[-1]
        if (n, m) != (i, j) and n >= i and m >= j and are_as_many(old[i:n], new[j:m]):
            cuts.append((n, m))
    return cuts


def _places(sizes: list[ir.Expr], new: list[tuple[ir.Expr, ir.Expr]]) -> list[ir.Expr]:
    """The indices along some axes, of those along others that hold as many elements.

    Args:
        sizes: of the axes.
        new: along each of the others, the index and the size.
    """
    position: ir.Expr = tirx.const(0, "int64")
    for index, size in new:
        position = position * size + index
    places: list[ir.Expr] = []
    for size in reversed(sizes[1:]):
        places.insert(0, tirx.floormod(position, size))
        position = tirx.floordiv(position, size)
    return [position, *places][: len(sizes)]


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
