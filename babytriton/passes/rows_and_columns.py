"""Kernels that work row by row and reduce the columns of the same rows: the way back of a norm.

The gradient of what a norm is of is computed row by row; those of its weights are sums over all
rows, of the same numbers. So it is with an activation and the bias before it. Where rows pass
through both at once, each is read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import element, same_extents, uses
from babytriton.passes.rows import (
    LINE,
    Extents,
    along_rows,
    is_reduction,
    reduced,
    reduces_last_axes,
    reduces_trailing_axes,
    rows_are_apart,
    spatial,
    stores_points,
    without_unit_axes,
)

_OPERATORS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class RowAndColumnWork:
    """The blocks of a kernel that does both, by number.

    Attributes:
        rows: the extents of the axes that are the rows.
        before: the blocks that compute for all rows alike, element by element.
        on_rows: those that work on rows.
        columns: those that reduce columns.
        after: those that go on with what columns were reduced to, element by element.
    """

    rows: Extents
    before: tuple[int, ...]
    on_rows: tuple[int, ...]
    columns: tuple[int, ...]
    after: tuple[int, ...]


def rows_and_columns(blocks: Sequence[s_tir.SBlock]) -> RowAndColumnWork | None:
    """How a kernel works on rows and on their columns; None if it does not do both.

    Args:
        blocks: the kernel's, in order.
    """
    columns = [n for n, block in enumerate(blocks) if _is_of_columns(block)]
    if not columns:
        return None
    first = blocks[columns[0]]
    rows, elements = reduced(first), spatial(first)
    if all(isinstance(n, int) for n in elements) and math.prod(elements) < LINE:
        return None
    after = _reading(blocks, columns)
    others = [n for n in range(len(blocks)) if n not in after]
    along = [_values(blocks[n]) if n in columns else blocks[n] for n in others]
    found = along_rows(along, rows)
    work = [along[n] for n in found]
    on_rows = [others[n] for n in found if others[n] not in columns]
    before = [n for n in others if n not in (*columns, *on_rows)]
    fits = (
        on_rows
        and all(same_extents(reduced(blocks[n]), rows) for n in columns)
        and all(same_extents(spatial(blocks[n]), elements) for n in (*columns, *after))
        and all(stores_points(blocks[n]) for n in (*before, *after))
        and all(_is_of_rows(block, len(rows), elements) for block in work)
        and not _written(blocks, (*on_rows, *columns)) & _read(blocks, before)
        and not _written(blocks, after) & _read(blocks, columns)
        and rows_are_apart(work, len(rows))
    )
    parts = (tuple(part) for part in (before, on_rows, columns, after))
    return RowAndColumnWork(rows, *parts) if fits else None


def _is_of_columns(block: s_tir.SBlock) -> bool:
    """Whether a block reduces what lies apart in memory, for elements that lie together."""
    if not is_reduction(block) or not spatial(block) or not reduces_trailing_axes(block):
        return False
    value = _value(block)
    if value is None or reduces_last_axes(block):
        return False
    column = [it.var for it in block.iter_vars if it.iter_type == tirx.IterVar.DataPar][-1]
    loads = [load for load in nodes(value, ir.TensorLoad) if uses(load, column)]
    indices = [without_unit_axes(load.source, load.indices) for load in loads]
    return bool(loads) and all(
        index[-1].same_as(column) and not any(uses(i, column) for i in index[:-1])
        for index in indices
    )


def _value(block: s_tir.SBlock) -> ir.Expr | None:
    """What a block takes in, if it combines single values by an operator."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, _OPERATORS):
        return None
    own = store.value.a
    is_own = isinstance(own, ir.TensorLoad) and own.source.same_as(store.buffer)
    return store.value.b if is_own else None


def _values(block: s_tir.SBlock) -> s_tir.SBlock:
    """A block that computes, for each element of each row, what another one reduces."""
    kinds = (tirx.IterVar.CommReduce, tirx.IterVar.DataPar)
    axes = [it for kind in kinds for it in block.iter_vars if it.iter_type == kind]
    points = [tirx.IterVar(it.dom, it.var, tirx.IterVar.DataPar) for it in axes]
    shape, index = [it.dom.extent for it in axes], [it.var for it in axes]
    own, name = block.body.buffer, f"{block.name_hint}_values"
    buffer = tirx.decl_buffer(shape, own.ty.dtype, name)
    value = _value(block)
    loads = [element(load.source, load.indices) for load in nodes(value, ir.TensorLoad)]
    stored = tirx.BufferStore(buffer, value, index)
    return s_tir.SBlock(points, loads, [element(buffer, index)], name, stored)


def _is_of_rows(block: s_tir.SBlock, rows: int, elements: Extents) -> bool:
    """Whether a block reduces the elements of each row, or has a value for each or for each row."""
    inner = spatial(block)[rows:]
    if is_reduction(block):
        return not inner and reduces_last_axes(block) and same_extents(reduced(block), elements)
    return stores_points(block) and (not inner or same_extents(inner, elements))


def _reading(blocks: Sequence[s_tir.SBlock], numbers: Sequence[int]) -> list[int]:
    """The numbers of other blocks that read what some compute, or what such others do."""
    found: list[int] = []
    for number in range(len(blocks)):
        made = _written(blocks, (*numbers, *found))
        if number not in numbers and made & _read(blocks, [number]):
            found.append(number)
    return found


def _read(blocks: Sequence[s_tir.SBlock], numbers: Sequence[int]) -> set[tirx.Var]:
    return {load.source for n in numbers for load in nodes(blocks[n].body, ir.TensorLoad)}


def _written(blocks: Sequence[s_tir.SBlock], numbers: Sequence[int]) -> set[tirx.Var]:
    return {region.source for n in numbers for region in blocks[n].writes}
