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
    blocks = plain_blocks(func)
    return len(func.params) == 2 and len(blocks) == 1 and _is_reshape(blocks[0])


def _is_reshape(block: s_tir.SBlock) -> bool:
    """Whether a block is that of :func:`reshaped`, as it was made."""
    if block.name_hint != RESHAPE or not _moves(block):
        return False
    given, result = block.body.value.source, block.body.buffer
    x = te.placeholder(list(given.shape), str(given.ty.dtype))
    made = te.create_prim_func([x, reshaped(x, list(result.shape))], "int64")
    [own] = plain_blocks(made)
    return bool(tvm_ffi.structural_equal(own, block, map_free_vars=True))


def _moves(block: s_tir.SBlock) -> bool:
    """Whether a block gives all of a tensor, point by point, from elements of another one."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad):
        return False
    return is_point(list(store.indices), [axis.var for axis in block.iter_vars])


def keeps_order(func: tirx.PrimFunc) -> bool:
    """Whether a kernel gives all elements of one tensor in their order, and no more."""
    blocks = plain_blocks(func)
    tensors = [x for x in func.params if isinstance(x.ty, tirx.BufferType)]
    if not blocks or len(tensors) != 2 or is_users(func) or not all(map(_moves, blocks)):
        return False
    given, *made = [block.body.value.source for block in blocks]
    *others, result = [block.body.buffer for block in blocks]
    ends = given.same_as(tensors[0]) and result.same_as(tensors[1])
    if not ends or not all(x.same_as(y) for x, y in zip(made, others)):
        return False
    if _is_in_order(*blocks):
        return True
    # A product of sizes that a call tells has a name of its own: of each reshape it is known that
    # as many elements are in both shapes, but not of all together.
    return all(_is_in_order(block) or _is_reshape(block) for block in blocks)


def _is_in_order(*blocks: s_tir.SBlock) -> bool:
    """Whether blocks that move elements one after the other surely keep all, in their order."""
    last = blocks[-1]
    point: list[ir.Expr] = [axis.var for axis in last.iter_vars]
    places = point
    for block in reversed(blocks):
        value = block.body.value
        if not are_as_many(list(value.source.shape), list(block.body.buffer.shape)):
            return False
        at = {axis.var: place for axis, place in zip(block.iter_vars, places)}
        indices = list(value.indices)
        places = tvm_ffi.structural_map(indices, (ir.Var, lambda var, at=at: at.get(var, var)))
    analyzer = sym.Analyzer()
    for axis in last.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    source = offset(blocks[0].body.value.source, list(places))
    return bool(analyzer.can_prove_equal(source, offset(last.body.buffer, point)))


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
