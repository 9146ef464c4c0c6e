"""Kernels that work row by row: softmax, layer_norm, sums along the last axes.

Their blocks share leading axes, the rows; what a block computes for a row, only that row needs.
So all of a row's work can stand in one loop over the rows, where it finds its values close by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import is_one, same_extents, uses
from babytriton.passes.statements import is_number

Extents = list[int | tirx.Expr]

_SHORT = 8
"""Numbers of a row that are read from memory at once, however few of them are asked for."""

LINE = 32
"""Numbers one behind the other that loops go along as fast as along all of a tensor."""


def shared_rows(blocks: Sequence[s_tir.SBlock]) -> Extents | None:
    """The extents of the axes that lead every block and that none reduces.

    None if the kernel is not row-wise: some block reduces other axes than its last, has other
    leading axes, or reads what another computes for another row.
    """
    return _shared_first(blocks) if all(map(reduces_last_axes, _reductions(blocks))) else None


def shared_columns(blocks: Sequence[s_tir.SBlock]) -> Extents | None:
    """The same where what is reduced lies apart in memory, and the shared axes have the last one.

    None also where a block reduces along what lies together. What blocks leave to each other lies
    nowhere.
    """
    made = {region.source for block in blocks for region in block.writes}
    reductions = _reductions(blocks)
    rows = len(spatial(reductions[0])) if reductions else 0
    lie_apart = []
    for block in blocks:
        column = spatial_axes(block)[rows - 1 : rows] if rows else []
        loads = nodes(block.body, ir.TensorLoad) if column else []
        given = [load for load in loads if load.source not in made]
        found = [without_unit_axes(load.source, load.indices) for load in given]
        lie_apart.append(any(index and uses(index[-1], column[0][0]) for index in found))
        if is_reduction(block) and not reduces_trailing_axes(block):
            return None
        if is_reduction(block) and given and (not lie_apart[-1] or reduces_last_axes(block)):
            return None
    return _shared_first(blocks) if any(lie_apart) else None


def _shared_first(blocks: Sequence[s_tir.SBlock]) -> Extents | None:
    """The extents of the axes that lead every block, and that are all which reductions share."""
    reductions = _reductions(blocks)
    rows = spatial(reductions[0]) if reductions else []
    for block in blocks:
        if is_reduction(block):
            fits = same_extents(spatial(block), rows)
        else:
            fits = stores_points(block) and same_extents(spatial(block)[: len(rows)], rows)
        if not fits:
            return None
    return rows if reductions and rows_are_apart(blocks, len(rows)) else None


def _reductions(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    return [block for block in blocks if is_reduction(block)]


def rows_first(sch: s_tir.Schedule, infos: Sequence[SBlockInfo]) -> list[SBlockInfo]:
    """The blocks with the axes first that are not reduced, also where others lie before them.

    Of `x - x.mean((0, 2), keepdim=True)` the second axis has the rows.
    """
    found = []
    for info, order in zip(infos, _orders([sch.get(info.block_rv) for info in infos])):
        if order != sorted(order):
            sch.reorder_block_iter_var(info.block_rv, order)
            iters = [info.iters[n] for n in order]
            info = SBlockInfo(info.name, iters, info.block_rv, info.is_reduction())
        found.append(info)
    return found


def with_rows_first(blocks: Sequence[s_tir.SBlock]) -> list[s_tir.SBlock]:
    """The same of blocks that are in no schedule."""
    return [
        block
        if order == sorted(order)
        else s_tir.SBlock(
            [block.iter_vars[n] for n in order],
            *(block.reads, block.writes, block.name_hint, block.body, block.init),
        )
        for block, order in zip(blocks, _orders(blocks))
    ]


def _orders(blocks: Sequence[s_tir.SBlock]) -> list[list[int]]:
    """For each block, in which order its axes are those of rows first, as far as that is known.

    What reductions share out are rows: where they read and write these axes, so do other blocks.
    """
    known: dict[tirx.Var, list[int]] = {}
    for block in filter(is_reduction, blocks):
        rows = [var for var, _ in spatial_axes(block)]
        for buffer, indices in _accesses(block):
            found = [_place(indices, row) for row in rows]
            if rows and None not in found:
                known.setdefault(buffer, [place for place in found if place is not None])
    orders: list[list[int]] = []
    for _ in range(2):  # What comes before a block may be known by what comes after it.
        orders = [_order(block, known) for block in blocks]
    return orders


def _order(block: s_tir.SBlock, known: dict[tirx.Var, list[int]]) -> list[int]:
    """The order of a block's axes, by what is known of tensors; to which it adds its own."""
    own = list(range(len(block.iter_vars)))
    if not stores_points(block):
        return own
    variables = [it.var for it in block.iter_vars]
    for buffer, indices in _accesses(block):
        axes = [_place(variables, indices[place]) for place in known.get(buffer, [])]
        first = [axis for axis in axes if axis is not None]
        if first and len(set(first)) == len(axes):
            for other, at in _accesses(block):
                places = [_place(at, variables[axis]) for axis in first]
                if None not in places:
                    known.setdefault(other, [place for place in places if place is not None])
            return [*first, *(axis for axis in own if axis not in first)]
    return own


def _accesses(block: s_tir.SBlock) -> list[tuple[tirx.Var, Sequence[ir.Expr]]]:
    """What the block reads and writes, and where."""
    loads = [(load.source, load.indices) for load in nodes(block.body, ir.TensorLoad)]
    stores = [(store.buffer, store.indices) for store in nodes(block.body, tirx.BufferStore)]
    return [*stores, *loads]


def _place(exprs: Sequence[ir.Expr], one: ir.Expr) -> int | None:
    """Which of some expressions is this one."""
    return next((n for n, expr in enumerate(exprs) if expr.same_as(one)), None)


@dataclass(frozen=True)
class RowWork:
    """The blocks of a kernel that works row by row, by number.

    Attributes:
        rows: the extents of the axes that are the rows.
        before: those that compute for all rows alike, element by element.
        blocks: those that work on rows.
        after: those that run once all rows are done.
    """

    rows: Extents
    before: tuple[int, ...]
    blocks: tuple[int, ...]
    after: tuple[int, ...]


def row_work(blocks: Sequence[s_tir.SBlock], small: int = 0) -> RowWork | None:
    """How a kernel works row by row, and perhaps on the rows' results; None if it does not.

    Args:
        blocks: the kernel's.
        small: how many points a block that runs after the rows may have.
    """
    reductions = [block for block in blocks if is_reduction(block)]
    if not reductions:
        return None
    rows = spatial(max(reductions, key=lambda block: iterations(block) or math.inf))
    on_rows = set(along_rows(blocks, rows))
    needed, reads = set(on_rows), _reading(blocks)
    for number in reversed(range(len(blocks))):
        if number not in needed and any(reads(n, number) for n in needed):
            needed.add(number)
    before, after = needed - on_rows, set(range(len(blocks))) - needed
    fits = (
        all(stores_points(blocks[n]) for n in before)
        and all((iterations(blocks[n]) or math.inf) <= small for n in after)
        and shared_rows([blocks[n] for n in sorted(on_rows)]) is not None
    )
    parts = (tuple(sorted(part)) for part in (before, on_rows, after))
    return RowWork(rows, *parts) if fits else None


def along_rows(blocks: Sequence[s_tir.SBlock], rows: Extents) -> list[int]:
    """The numbers of the blocks whose first axes are these rows.

    Not of those that have as many points, but are for each row the same, as the weights of a norm
    are where there are as many rows as elements: others read them elsewhere than at their own row.
    Nor of those that have nothing of a row's elements and that only others read: they run once all
    rows are done.
    """
    found = [n for n, block in enumerate(blocks) if same_extents(spatial(block)[: len(rows)], rows)]
    own = set(of_elements([blocks[n] for n in found], rows))
    reads = _reading(blocks)
    for number in reversed(found):
        block = blocks[number]
        if block in own:
            continue
        readers = [n for n in range(len(blocks)) if n != number and reads(n, number)]
        beside = [blocks[n] for n in readers if n in found]
        is_late = bool(readers) and not beside
        if is_late or any(_reads_elsewhere(other, block, len(rows)) for other in beside):
            found.remove(number)
    return found


def of_elements(blocks: Sequence[s_tir.SBlock], rows: Extents) -> list[s_tir.SBlock]:
    """Those of blocks on rows that go over a row's elements, and those that read what these give.

    The latter only where rows are long: LLVM takes several short ones at once, but for what is read
    of them at places from a tensor.
    """
    lengths = [math.prod(n for n in reduced(block) if isinstance(n, int)) for block in blocks]
    are_long = max(lengths, default=0) >= LINE // 2 or not all(
        isinstance(n, int) for block in blocks for n in reduced(block)
    )
    found: list[int] = []
    reads = _reading(blocks)
    for number, block in enumerate(blocks):
        is_point = stores_points(block) and len(spatial(block)) == len(rows)
        if not is_point or (are_long and any(reads(number, other) for other in found)):
            found.append(number)
    return [blocks[n] for n in found]


def _reads_elsewhere(block: s_tir.SBlock, other: s_tir.SBlock, axes: int) -> bool:
    """Whether a block reads what another one has of a row elsewhere than at its own row."""
    rows, own = [var for var, _ in spatial_axes(block)][:axes], other.body.buffer
    loads = [load for load in nodes(block.body, ir.TensorLoad) if load.source.same_as(own)]
    indices = [without_unit_axes(load.source, load.indices) for load in loads]
    return not all(
        len(index) == len(rows) and all(i.same_as(row) for i, row in zip(index, rows))
        for index in indices
    )


def are_of_rows(blocks: Sequence[s_tir.SBlock]) -> bool:
    """Whether blocks that read nothing of each other all reduce rows, which have one length."""
    joined: list[tuple[set[tirx.Var], list[s_tir.SBlock]]] = []
    for block in blocks:
        own = {load.source for load in nodes(block.body, ir.TensorLoad)}
        written, together = {region.source for region in block.writes}, [block]
        for other in [other for other in joined if own & other[0]]:
            joined.remove(other)
            written |= other[0]
            together = [*other[1], *together]
        joined.append((written, together))
    reductions = [block for block in blocks if is_reduction(block)]
    return all(any(map(is_reduction, together)) for _, together in joined) and all(
        same_extents(reduced(block), reduced(reductions[0])) for block in reductions
    )


def is_on_points(blocks: Sequence[s_tir.SBlock]) -> bool:
    """Whether all blocks store a value at each of the same points, of values at their own point.

    Some may compute single numbers before.
    """
    numbers = {n for n, block in enumerate(blocks) if stores_points(block) and not spatial(block)}
    others = [n for n in range(len(blocks)) if n not in numbers]
    reads = _reading(blocks)
    if not others or any(reads(number, n) for number in numbers for n in others):
        return False
    blocks = [blocks[n] for n in others]
    points = spatial(blocks[0])
    return (
        all(stores_points(block) and same_extents(spatial(block), points) for block in blocks)
        and bool(points)
        and rows_are_apart(blocks, len(points))
        and all(map(_reads_along_lines, blocks))
    )


def _reads_along_lines(block: s_tir.SBlock) -> bool:
    """Whether the block reads nothing across the lines of memory, as a transpose does."""
    inner = spatial_axes(block)[-1][0]
    loads = nodes(block.body, ir.TensorLoad)
    return not any(uses(index, inner) for load in loads for index in _across_lines(load))


def _across_lines(load: ir.TensorLoad) -> Sequence[ir.Expr]:
    """The indices of a load of which another value is on another line of memory.

    Of rows shorter than a sector, such as the corners of boxes, several are on a line.
    """
    *outer, place = without_unit_axes(load.source, load.indices) or [tirx.const(0)]
    length = load.source.shape[-1] if load.indices else None
    is_short = isinstance(length, tirx.IntImm) and 1 < int(length) <= _SHORT
    return outer[:-1] if is_short and isinstance(place, tirx.IntImm) else outer


def is_on_columns(blocks: Sequence[s_tir.SBlock]) -> bool:
    """Whether all blocks reduce the same columns, or do what comes before or after that.

    Before it, point by point of what is reduced; after it, point by point of the results, or of
    what was reduced once more. All of a tensor is a column, too, if it is gone through in the order
    in which it lies in memory.
    """
    reductions = [block for block in blocks if is_reduction(block)]
    if not reductions:
        return False
    first, *_ = reductions
    columns = spatial(first)
    if columns and any(map(reduces_last_axes, reductions)):
        return False
    points = sorted(map(str, [*columns, *reduced(first)]))
    done: set[tirx.Var] = set()
    written: set[tirx.Var] = set()
    for block in blocks:
        read = {load.source for load in nodes(block.body, ir.TensorLoad)}
        is_given = not read & written and stores_points(block)
        is_broadcast = len(spatial(block)) < len(points)
        if is_given and is_broadcast and not same_extents(spatial(block), columns):
            continue  # Such as the weights of channels, as the channels have them.
        written.update(region.source for region in block.writes)
        if is_reduction(block):
            fits = same_extents(spatial(block), columns)
            fits = fits and same_extents(reduced(block), reduced(first))
            done.update(region.source for region in block.writes)
        elif (columns or read & done) and same_extents(spatial(block), columns):
            fits = stores_points(block) and _reads_at_own_point(block, done)
            done.update(region.source for region in block.writes)
        else:
            fits = stores_points(block) and sorted(map(str, spatial(block))) == points
        if not fits or not (columns or _reads_in_order(block)):
            return False
    return True


def _reads_in_order(block: s_tir.SBlock) -> bool:
    """Whether the block's points, in order, read numbers that lie one behind the other.

    Or the same ones again and again, in long lines, or a single one.
    """
    axes = [(it.var, _extent(it)) for it in block.iter_vars if not is_one(_extent(it))]
    for load in nodes(block.body, ir.TensorLoad):
        indices = without_unit_axes(load.source, load.indices)
        sizes = [n for n in load.source.shape if not is_number(n, 1)]
        places = [_place([var for var, _ in axes], index) for index in indices]
        known = [place for place in places if place is not None]
        if len(known) < len(places) or known != sorted(set(known)):
            return False
        if not same_extents(list(sizes), [axes[place][1] for place in known]):
            return False
        length = axes[-1][1] if axes else 1
        if 0 < len(known) < len(axes) and isinstance(length, int) and length < LINE:
            return False
    return True


def _reads_at_own_point(block: s_tir.SBlock, buffers: set[tirx.Var]) -> bool:
    """Whether the block reads of some buffers only the point that it stores."""
    point = [var for var, _ in spatial_axes(block)]
    loads = [load for load in nodes(block.body, ir.TensorLoad) if load.source in buffers]
    indices = [without_unit_axes(load.source, load.indices) for load in loads]
    return all(
        len(index) == len(point) and all(i.same_as(var) for i, var in zip(index, point))
        for index in indices
    )


def reduced(block: s_tir.SBlock) -> Extents:
    """The extents of the block's axes that are reduced and not 1."""
    axes = [it for it in block.iter_vars if it.iter_type == tirx.IterVar.CommReduce]
    return [extent for extent in map(_extent, axes) if not is_one(extent)]


def _reading(blocks: Sequence[s_tir.SBlock]) -> Callable[[int, int], bool]:
    """Whether one of some blocks reads what another one writes, by their numbers."""
    loaded = [{load.source for load in nodes(block.body, ir.TensorLoad)} for block in blocks]
    stored = [{region.source for region in block.writes} for block in blocks]
    return lambda number, other: not loaded[number].isdisjoint(stored[other])


def iterations(block: s_tir.SBlock) -> int | None:
    """How many iterations the block has; None where a size is symbolic."""
    extents = [_extent(it) for it in block.iter_vars]
    known = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(known) if len(known) == len(extents) else None


def is_reduction(block: s_tir.SBlock) -> bool:
    """Whether the block reduces some axes, and shares all others out."""
    types = {it.iter_type for it in block.iter_vars}
    reduced = tirx.IterVar.CommReduce
    return reduced in types and types <= {reduced, tirx.IterVar.DataPar}


def stores_points(block: s_tir.SBlock) -> bool:
    """Whether the block stores one value at each of its points."""
    types = {it.iter_type for it in block.iter_vars}
    return types <= {tirx.IterVar.DataPar} and isinstance(block.body, tirx.BufferStore)


def spatial(block: s_tir.SBlock) -> Extents:
    """The extents of the block's axes that are not reduced and not 1."""
    return [extent for _, extent in spatial_axes(block)]


def spatial_axes(block: s_tir.SBlock) -> list[tuple[tirx.Var, int | tirx.Expr]]:
    """The axes that are not reduced and not 1: their variables and extents."""
    axes = [it for it in block.iter_vars if it.iter_type == tirx.IterVar.DataPar]
    sized = [(it.var, _extent(it)) for it in axes]
    return [(var, extent) for var, extent in sized if not is_one(extent)]


def _extent(axis: tirx.IterVar) -> int | tirx.Expr:
    extent = axis.dom.extent
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def reduces_last_axes(block: s_tir.SBlock) -> bool:
    """Whether the block reduces its trailing axes, and they are the last of what it reads.

    Also where others go along with the last one, as on a diagonal, and of one column of several: no
    axis has what lies together.
    """
    if not reduces_trailing_axes(block):
        return False
    axes = [it.var for it in block.iter_vars if not is_one(_extent(it))]
    if not axes:
        return True
    inner = axes[-1]
    loads = nodes(block.body, ir.TensorLoad)
    places = [without_unit_axes(load.source, load.indices) for load in loads]
    return not any(
        uses(index, inner)
        for place in places
        if place and not uses(place[-1], inner) and any(uses(place[-1], var) for var in axes)
        for index in place[:-1]
    )


def rows_are_apart(blocks: Sequence[s_tir.SBlock], axes: int) -> bool:
    """Whether no block reads what another computes for another row.

    TVM does not check it when it moves a consumer: of `s[i] * s[j]` the diagonal would remain.
    """
    computed: dict[tirx.Var, list[int | None]] = {}
    for block in blocks:
        rows = [var for var, _ in spatial_axes(block)][:axes]
        for load in nodes(block.body, ir.TensorLoad):
            places = computed.get(load.source, [])
            if not all(
                n is not None and load.indices[n].same_as(row) for n, row in zip(places, rows)
            ):
                return False
        for store in nodes(block.body, tirx.BufferStore):
            computed[store.buffer] = [_place(store.indices, row) for row in rows]
    return True


def without_unit_axes(buffer: tirx.Buffer, indices: list[ir.Expr]) -> list[ir.Expr]:
    """The indices of the axes that are not 1 long (`keepdim` leaves such)."""
    return [
        index
        for index, size in zip(indices, buffer.shape)
        if not (isinstance(size, tirx.IntImm) and int(size) == 1)
    ]


def turns(block: s_tir.SBlock) -> bool:
    """Whether the block stores points, and reads some in another order, as a transpose does."""
    if not stores_points(block):
        return False
    axes = [var for var, _ in spatial_axes(block)]
    for load in nodes(block.body.value, ir.TensorLoad):
        places = [_place(axes, index) for index in load.indices]
        known = [place for place in places if place is not None]
        if known != sorted(known):
            return True
    return False


def reduces_trailing_axes(block: s_tir.SBlock) -> bool:
    types = [it.iter_type for it in block.iter_vars]
    return types == sorted(types, key=lambda type: type == tirx.IterVar.CommReduce)
