"""Writing elements by tensors of indices, without races."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, tirx

from babytriton.ops.assignments import put_at
from babytriton.ops.counted import Picks
from babytriton.ops.gradients import scattering as gradients
from babytriton.ops.gradients.positions import is_place
from babytriton.ops.meta import typed
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_one, is_symbolic
from babytriton.ops.storage import memory_of
from babytriton.ops.subscript import cut_of, from_end, from_start, index64, require_one_dtype
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.ops.writes import COMBINE, Combine, Expr, Place, Writes, added, broadcast, replaced

T = torch.Tensor


def _scattered(
    site: Site, input: Value, dim: int, index: Value, source: Any, combine: Combine
) -> Any:
    """scatter and its like: an index for every element of ``source``."""
    dim %= input.meta.ndim
    sizes = tuple(index.meta.shape)

    def places(picks: Sequence[Any], at: Place, i: Expr) -> Any:
        origin = [*at[:dim], i, *at[dim:]]
        place = list(origin)
        place[dim] = index64(picks[0][tuple(origin)])
        return place, origin

    slices = (*sizes[:dim], *sizes[dim + 1 :])
    writes = Writes(input, [index], source, combine, slices, sizes[dim], [dim], places)
    return writes.emit(site)


def _scatter(
    site: Site,
    input: Value,
    dim: int,
    index: Value,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Any:
    source = value if src is None else src
    if isinstance(source, Value) and source.meta.ndim == 0:
        source = source.expand(index.meta.shape)
    combine = COMBINE[reduce]
    if input.meta.ndim and index.meta.ndim:
        return _scattered(site, input, dim, index, source, combine)
    flat = source.reshape(-1) if isinstance(source, Value) else source
    written = _scattered(site, input.reshape(-1), 0, index.reshape(-1), flat, combine)
    return relax.op.reshape(written, site.shape)


def _scatter_add(site: Site, input: Value, dim: int, index: Value, src: Value) -> Any:
    return _scatter(site, input, dim, index, src, reduce="add")


def _scatter_reduce(
    site: Site,
    input: Any,
    dim: int,
    index: Any,
    src: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    if not include_self:
        # Where something is written, it meets what changes nothing.
        input = input.scatter(dim, index, _neutral(reduce, site.dtype))
    if reduce != "mean":
        return _scatter(site, input, dim, index, src, reduce=reduce)
    wide = opmath(site.dtype)
    source: Any = src.to(wide)
    total: Any = input.to(wide).scatter_add(dim, index, source)
    start: Any = (torch.ones_like if include_self else torch.zeros_like)(total)
    count = start.scatter_add(dim, index, torch.ones_like(source)).clamp(min=1)
    if site.dtype.is_floating_point:
        return (total / count).to(site.dtype)
    # No count is zero, so that integer division cannot fail.
    return site.compute(
        "mean", site.shape, lambda x, *i: tirx.floordiv(x[0](*i), x[1](*i)), total.expr, count.expr
    )


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    """What a reduction starts from."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _placed(
    site: Site, input: Value, dim: int, index: Value, source: Any, combine: Combine, wrap: bool
) -> Any:
    """index_add and its like: one index for each slice of ``source``."""
    if input.meta.ndim == 0:
        flat = source.reshape(-1) if isinstance(source, Value) else source
        written = _placed(site, input.reshape(1), 0, index.reshape(-1), flat, combine, wrap)
        return relax.op.reshape(written, ())
    dim %= input.meta.ndim
    sizes = tuple(input.meta.shape)

    def places(picks: Sequence[Any], at: Place, i: Expr) -> Any:
        pick = index64(picks[0][i])
        return [*at[:dim], pick, *at[dim:]], [*at[:dim], i, *at[dim:]]

    slices, count = (*sizes[:dim], *sizes[dim + 1 :]), index.meta.numel()
    flat = index if index.meta.ndim == 1 else index.reshape(-1)
    return Writes(input, [flat], source, combine, slices, count, [dim], places, wrap).emit(site)


def _index_add(
    site: Site, input: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Any:
    if alpha != 1:
        source = source * alpha
    return _placed(site, input, dim, index, _as_slices(input, dim, source), added, False)


def _index_copy(site: Site, input: Value, dim: int, index: Value, source: Value) -> Any:
    return _placed(site, input, dim, index, _as_slices(input, dim, source), replaced, False)


def _as_slices(input: Value, dim: int, source: Any) -> Any:
    """A single slice may come without the indexed dimension."""
    return source.unsqueeze(dim) if source.ndim < input.meta.ndim else source


def _index_fill(site: Site, input: Value, dim: int, index: Value, value: Any) -> Any:
    if isinstance(value, Value):
        sizes = list(input.meta.shape) or [1]
        sizes[dim] = index.meta.numel()
        value = value.expand(sizes)
    return _placed(site, input, dim, index, value, replaced, True)


def _index_put(
    site: Site,
    input: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Any:
    """As torch has it: None for a dimension that is written along all of."""
    given = [x for x in indices if x is not None]
    if any(x.meta.dtype in (torch.bool, torch.uint8) for x in given):
        return _masked(input, indices, values, accumulate)
    require_one_dtype(input, values)
    shape = tuple(input.meta.shape)
    dims = [dim for dim, x in enumerate(indices) if x is not None]
    picks = Picks.of(shape, dims, given)
    others = [dim for dim in range(len(shape)) if dim not in dims]
    # Where the indices stand side by side, their dimensions stand where they stood.
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    rest = [shape[dim] for dim in others]
    _require_broadcast(site, values, (*rest[:first], *picks.common, *rest[first:]))
    if picks.is_one_of_each and _is_own(site, input):
        return _put_in_lines(input, indices, values, picks, first, accumulate)
    lines = [dim for dim in range(len(shape)) if dim not in picks.picked]
    read = [x for x, dim in zip(given, dims) if dim in picks.picked]
    sizes = [picks.common[axis] for axis in picks.free]

    def places(buffers: Sequence[Any], at: Place, i: Expr) -> Any:
        place = dict(zip(lines, at))
        write = {axis: place[dim] for dim, axis in picks.counted.items()}
        write |= zip(picks.free, _unraveled(i, sizes))
        where = [write[axis] for axis in range(len(picks.common))]
        along = [place[dim] for dim in others]
        for dim, buffer in zip(picks.picked, buffers):
            index = tirx.BufferLoad(buffer, broadcast(buffer, where))
            place[dim] = index64(index)
        origin = [*along[:first], *where, *along[first:]]
        return [place[dim] for dim in range(len(shape))], origin

    combine = added if accumulate else replaced
    slices = [shape[dim] for dim in lines]
    writes = Writes(input, read, values, combine, slices, picks.count, picks.picked, places, True)
    return writes.emit(site)


def _is_own(site: Site, input: Value) -> bool:
    """Whether the program makes a tensor: of others, what is written may be all that it makes."""
    memory = input.storage
    made = input.expr if memory is None else memory.first[0]
    callers = any(x.is_callers for x in memory_of([input]))
    return made in site.builder.bindings and not callers


def _put_in_lines(
    input: Any,
    indices: Sequence[Any],
    values: Any,
    picks: Picks,
    first: int,
    accumulate: bool,
) -> Any:
    """Elements at one place of each line, which each knows by its own: elementwise.

    Args:
        input: what they are written to.
        indices: a tensor for each dimension that has indices, and ``None`` for others.
        values: the elements.
        picks: what the indices pick.
        first: where the dimensions that the indices broadcast to stand in ``values``.
        accumulate: whether they are added.
    """
    [dim], axes, rank = picks.picked, picks.common, input.ndim
    others = [d for d in range(rank) if d not in picks.counted and d != dim]
    rest = [input.shape[d] for d in others]
    order = [*picks.counted, *others]

    def laid(x: Any, more: Sequence[Any]) -> Any:
        """With its axes as the lines lie, and 1 element along each."""
        x = x.permute([*picks.counted.values(), *picks.free, *range(len(axes), x.ndim)])
        x = x.reshape([*(input.shape[d] for d in picks.counted), *more])
        x = x.permute([order.index(d) for d in range(rank) if d != dim])
        return x.unsqueeze(dim)

    index = laid(indices[dim].expand(axes), [1] * len(rest))
    if all(is_one(n) for n in values.shape):
        new = values.reshape(())
    else:
        values = values.expand([*rest[:first], *axes, *rest[first:]])
        values = values.movedim([first + n for n in range(len(axes))], list(range(len(axes))))
        new = laid(values, rest)
    return torch.where(
        is_place(index, input.shape[dim], dim), input + new if accumulate else new, input
    )


def _put_at(site: Site, input: Value, item: Sequence[Any], values: Value) -> Any:
    sizes = tuple(input.meta.shape)
    numbers = [part for part in item if isinstance(part, Value)]
    cuts = {
        dim: cut_of(part, sizes[dim]) for dim, part in enumerate(item) if isinstance(part, slice)
    }
    dims = [dim for dim in range(len(sizes)) if dim not in cuts]
    lengths = [cut.length for cut in cuts.values()]

    def places(picks: Sequence[Any], at: Place, _: Expr) -> Any:
        told, along = iter(picks), iter(at)
        found: list[Expr] = []
        for dim, (part, size) in enumerate(zip(item, sizes)):
            if dim in cuts:
                found.append(int64(cuts[dim].start) + next(along) * int64(cuts[dim].step))
            elif isinstance(part, Value):
                found.append(index64(next(told)[()]))
            else:
                found.append(int64(from_start(part, size)))
        return found, list(at)

    _require_broadcast(site, values, tuple(lengths))
    return Writes(input, numbers, values, replaced, lengths, 1, dims, places, True).emit(site)


def _require_broadcast(site: Site, values: Value, shape: tuple[int, ...]) -> None:
    """Refuse values that do not broadcast to where they go."""
    try:
        typed(site.builder.device, site.builder.symbols, torch.Tensor.expand, (values, shape), {})
    except IllTyped:
        shapes = f"{list(values.meta.shape)} cannot be broadcast to {list(shape)}"
        raise IllTyped(f"the shapes do not fit: values of shape {shapes}") from None


def _unraveled(i: Expr, shape: Sequence[int]) -> list[Expr]:
    """The index of an element of a shape, by its number."""
    found: list[Expr] = []
    for size in reversed(shape[1:]):
        found.insert(0, tirx.floormod(i, int64(size)))
        i = tirx.floordiv(i, int64(size))
    return [i, *found] if shape else []


def _masked(input: Any, indices: Sequence[Value | None], values: Any, accumulate: bool) -> Any:
    [mask, *more] = indices
    if mask is None or more or values.numel() > 1 or mask.meta.dtype != torch.bool:
        raise Unsupported("how many elements a mask selects depends on data")
    mask = mask.reshape(*mask.shape, *[1] * (input.ndim - mask.ndim))
    values = values.reshape(()).to(input.dtype)
    return torch.where(mask, input + values if accumulate else values, input)


def _select_scatter(site: Site, input: Value, src: Value, dim: int, index: int) -> Any:
    dim %= input.meta.ndim
    index %= input.meta.shape[dim]

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        x, new = tensors
        others = [*at[:dim], *at[dim + 1 :]]
        return tirx.Select(tirx.EQ(at[dim], int64(index)), new(*others), x(*at))

    source = site.expr(src, site.dtype)
    return site.compute("select_scatter", site.shape, body, input.expr, source)


def _slice_scatter(
    site: Site,
    input: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    dim %= input.meta.ndim
    start, end, step = slice(start, end, step).indices(input.meta.shape[dim])

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        x, new = tensors
        offset = at[dim] - start
        inside = tirx.all(
            offset >= 0, at[dim] < end, tirx.EQ(tirx.floormod(offset, step), int64(0))
        )
        place = [*at[:dim], tirx.floordiv(offset, step), *at[dim + 1 :]]
        # if_then_else, as outside of the slice there is no element of src.
        return tirx.if_then_else(inside, new(*place), x(*at))

    source = site.expr(src, site.dtype)
    return site.compute("slice_scatter", site.shape, body, input.expr, source)


def _is_place(site: Site, index: Value, size: Any, dim: int) -> Any:
    # 32 bits: twice as many fit in a vector.
    is_short = not is_symbolic(size) and size < 1 << 31

    def body(tensors: Sequence[Any], *at: Any) -> Any:
        own = [int64(0) if d == dim else i for d, i in enumerate(at)]
        pick = from_end(index64(tensors[0](*own)), int64(size))
        if not is_short:
            return tirx.EQ(at[dim], pick)
        # No 32 bits of an index that is no place may be those of one.
        pick = tirx.max(tirx.min(pick, int64(size)), int64(-1))
        return tirx.EQ(at[dim].astype("int32"), pick.astype("int32"))

    return site.compute("is_place", site.shape, body, index.expr)


ROWS: tuple[Op, ...] = (
    Op("scatter", (torch.scatter, T.scatter), _scatter, gradient=gradients.scatter),
    Op(
        "scatter_add",
        (torch.scatter_add, T.scatter_add),
        _scatter_add,
        gradient=gradients.scatter_add,
    ),
    Op(
        "scatter_reduce",
        (torch.scatter_reduce, T.scatter_reduce),
        _scatter_reduce,
        gradient=gradients.scatter_reduce,
    ),
    Op("index_add", (torch.index_add, T.index_add), _index_add, gradient=gradients.index_add),
    Op("index_copy", (torch.index_copy, T.index_copy), _index_copy, gradient=gradients.index_copy),
    Op("index_fill", (torch.index_fill, T.index_fill), _index_fill, gradient=gradients.index_fill),
    Op(
        "index_put",
        (torch.index_put, T.index_put, torch.ops.aten.index_put.default),
        _index_put,
        gradient=gradients.index_put,
    ),
    Op(
        "setitem",
        (put_at,),
        _put_at,
        meta=lambda input, *_: torch.empty_like(input),
        gradient=gradients.put_at,
    ),
    Op(
        "select_scatter",
        (torch.select_scatter, T.select_scatter),
        _select_scatter,
        gradient=gradients.select_scatter,
    ),
    Op(
        "slice_scatter",
        (torch.slice_scatter, T.slice_scatter),
        _slice_scatter,
        gradient=gradients.slice_scatter,
    ),
    Op(
        "masked_scatter",
        (torch.masked_scatter, T.masked_scatter),
        why="which element goes where depends on all of the mask before it",
    ),
)

PARTS: tuple[Op, ...] = (Op("is_place", (is_place,), _is_place),)
