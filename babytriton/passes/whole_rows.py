"""Kernels that only copy what lies in one piece: callers may read or write it where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import ir, s_tir, sym, tirx
from tvm.ir import IRModule

from babytriton.ops.primfunc import nodes
from babytriton.ops.writes import WHOLE
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.reshape_kernels import keeps_order
from babytriton.passes.updates import IN_PLACE

ROW = "babytriton.row"
"""An attribute of kernels that copy a row of a parameter, or all of it in another shape: that one's
number, how many bytes it begins behind it, and for each of the kernel's numbers, which parameter it
is and how many bytes lie between two rows of it."""

STORED = "babytriton.stored"
"""An attribute of those that write a row: the number of the parameter that they copy to it."""


def marked(mod: IRModule) -> IRModule:
    """A program whose kernels say whether they copy a row."""
    functions = dict(mod.functions_items())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            functions[var] = _marked(func)
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _marked(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if keeps_order(func):
        first = next(n for n, x in enumerate(func.params) if isinstance(x.ty, tirx.BufferType))
        return func.with_attr(ROW, [first, 0])
    blocks = plain_blocks(func)
    if len(blocks) != 1 or blocks[0].init is not None or blocks[0].alloc_buffers:
        return func
    [block], analyzer = blocks, sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    if WHOLE in block.annotations:
        return _storing(func, block, analyzer)
    row = _loaded(func, block, analyzer)
    return func if row is None else func.with_attr(ROW, row)


def _loaded(func: tirx.PrimFunc, block: s_tir.SBlock, analyzer: sym.Analyzer) -> list[int] | None:
    """What :data:`ROW` says of a kernel that reads a row; None where it does something else."""
    store, out = block.body, func.params[-1]
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad):
        return None
    axes = [axis.var for axis in block.iter_vars]
    is_all = (
        store.buffer.same_as(out)
        and _are_same(store.indices, axes, analyzer)
        and _are_same(out.ty.shape, [axis.dom.extent for axis in block.iter_vars], analyzer)
    )
    source = store.value.source
    if not is_all or not _is_row(source, out, analyzer):
        return None
    return _offset(func, source, store.value.indices, axes, analyzer)


def _storing(func: tirx.PrimFunc, block: s_tir.SBlock, analyzer: sym.Analyzer) -> tirx.PrimFunc:
    """A kernel that writes all of a tensor to others' elements, where these are a row."""
    stores = nodes(block.body, tirx.BufferStore)
    places = func.attrs.get(IN_PLACE, ())
    if len(stores) != 1 or len(places) != 1 or nodes(block.body, tirx.IfThenElse):
        return func
    [store], out = stores, func.params[int(places[0])]
    if not store.buffer.same_as(out) or not isinstance(store.value, ir.TensorLoad):
        return func
    source = store.value.source
    number = _place(func, source)
    row = None
    if number is not None and _is_row(out, source, analyzer):
        row = _offset(func, out, store.indices, store.value.indices, analyzer)
    return func if row is None else func.with_attr(ROW, row).with_attr(STORED, number)


def _is_row(whole: tirx.Var, row: tirx.Var, analyzer: sym.Analyzer) -> bool:
    """Whether a tensor has the type of a row of another one."""
    before = len(whole.ty.shape) - len(row.ty.shape)
    return (
        before > 0
        and whole.ty.dtype == row.ty.dtype
        and _are_same(list(whole.ty.shape)[before:], row.ty.shape, analyzer)
    )


def _offset(
    func: tirx.PrimFunc,
    whole: tirx.Var,
    indices: Sequence[ir.Expr],
    inside: Sequence[ir.Expr],
    analyzer: sym.Analyzer,
) -> list[int] | None:
    """Where a row of a parameter begins, by linear terms of the kernel's numbers.

    Args:
        func: the kernel.
        whole: the parameter.
        indices: of an element of it.
        inside: of the same one in the row.
        analyzer: knows the extents of the axes.
    """
    place, shape = _place(func, whole), list(whole.ty.shape)
    before = len(indices) - len(inside)
    if place is None or not _are_same(list(indices)[before:], inside, analyzer):
        return None
    if not all(isinstance(size, tirx.IntImm) for size in shape[1:]):
        return None
    at: ir.Expr = tirx.const(0, "int64")
    for number, extent in zip(list(indices)[:before], shape):
        at = at * extent + number
    for extent in shape[before:]:
        at = at * extent
    told = [n for n, x in enumerate(func.params) if isinstance(x.ty, ir.PrimType)]
    terms = sym.detect_linear_equation(analyzer.simplify(at), [func.params[n] for n in told])
    if len(terms) != len(told) + 1 or not all(isinstance(x, tirx.IntImm) for x in terms):
        return None
    size = tvm.DataType(str(whole.ty.dtype)).itemsize
    *each, constant = (int(x) * size for x in terms)
    return [place, constant, *(x for pair in zip(told, each) if pair[1] for x in pair)]


def _place(func: tirx.PrimFunc, parameter: tirx.Var) -> int | None:
    return next((n for n, x in enumerate(func.params) if x.same_as(parameter)), None)


def _are_same(some: Sequence[ir.Expr], others: Sequence[ir.Expr], analyzer: sym.Analyzer) -> bool:
    equal = analyzer.can_prove_equal
    return len(some) == len(others) and all(equal(x, y) for x, y in zip(some, others))
