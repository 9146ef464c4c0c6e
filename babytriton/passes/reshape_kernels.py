"""Kernels that copy a tensor, also to another shape, and do nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import tvm_ffi
from tvm import ir, s_tir, sym, te, tirx, topi

from babytriton.ops.primfunc import is_users, nodes
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.factors import are_as_many
from babytriton.passes.nests import is_point, offset

RESHAPE = "T_reshape"
"""How TVM names the blocks that reshape."""


def reshaped(x: te.Tensor, shape: Sequence[ir.Expr]) -> te.Tensor:
    """A tensor in another shape of as many elements."""
    if not nodes([list(x.shape), list(shape)], ir.Var):
        return topi.reshape(x, shape)
    return _by_groups(x, shape)


def is_reshape_kernel(func: tirx.PrimFunc) -> bool:
    """Whether a kernel is one of :func:`reshaped`, as it was made."""
    names = {block.name_hint for block in nodes(func.body, s_tir.SBlock)}
    if len(func.params) != 2 or names != {"root", RESHAPE}:
        return False
    given, result = func.params
    x = te.placeholder(list(given.shape), str(given.dtype))
    made = te.create_prim_func([x, reshaped(x, list(result.shape))], "int64")
    return bool(tvm_ffi.structural_equal(made.body, func.body, map_free_vars=True))


def keeps_order(func: tirx.PrimFunc) -> bool:
    """Whether a kernel gives all elements of its one parameter in their order, and no more."""
    blocks = plain_blocks(func)
    if not blocks or len(func.params) != 2 or is_users(func):
        return False
    given, result = func.params
    axes = blocks[-1].iter_vars
    point: list[ir.Expr] = [axis.var for axis in axes]
    buffer, places = result, point
    for block in reversed(blocks):
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad):
            return False
        own = [axis.var for axis in block.iter_vars]
        if not store.buffer.same_as(buffer) or not is_point(list(store.indices), own):
            return False
        sizes = (list(x.shape) for x in (store.value.source, store.buffer))
        if block.name_hint != RESHAPE and not are_as_many(*sizes):
            return False
        at = dict(zip(own, places))
        buffer = store.value.source
        places = [
            tvm_ffi.structural_map(x, (ir.Var, lambda var, at=at: at.get(var, var)))
            for x in store.value.indices
        ]
    if not buffer.same_as(given):
        return False
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)
    if analyzer.can_prove_equal(offset(given, places), offset(result, point)):
        return True
    return is_reshape_kernel(func)  # of sizes whose product, which a call tells, has another name


def _by_groups(x: te.Tensor, shape: Sequence[ir.Expr]) -> te.Tensor:
    """As TVM's own, but by groups of axes that hold as many elements on both sides.

    TVM's takes all axes for one, and its index along the first for a remainder, though the position
    is in the tensor: with symbolic sizes, none that follows can know what becomes of the others.
    """
    groups = groups_of_axes(list(x.shape), list(shape))

    def element(*indices: ir.Expr) -> ir.Expr:
        own: list[ir.Expr] = []
        for old, new in groups:
            own += _places([x.shape[n] for n in old], [(indices[n], shape[n]) for n in new])
        return x(*own)

    return te.compute(shape, element, name=RESHAPE, tag=topi.tag.INJECTIVE)


def groups_of_axes(old: list[ir.Expr], new: list[ir.Expr]) -> list[tuple[range, range]]:
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
