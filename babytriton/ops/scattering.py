"""Writing elements by tensors of indices, without races.

The result starts as a copy, made in parallel. Then each slice across the indexed dimension, in
which alone two writes can meet, is written by one thread in the order of the indices: the last
write wins and sums add up in one order, on the GPU too, where torch leaves that open. On the CPU a
thread writes several slices that lie side by side.
An index outside of the tensor, for which torch raises on the CPU, writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as S

from babytriton.ops import numerics
from babytriton.ops.assignments import put_at
from babytriton.ops.emission import OPAQUE
from babytriton.ops.gradients import scattering as gradients
from babytriton.ops.meta import typed
from babytriton.ops.numerics import opmath
from babytriton.ops.pointwise import number
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.subscript import cut_of, from_end, from_start, index64, require_one_dtype
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import TensorType, dtype_of

T = torch.Tensor
Expr = Any
Combine = Callable[[Expr, Expr], Expr]


def _replace(old: Expr, new: Expr) -> Expr:
    return new


def _add(old: Expr, new: Expr) -> Expr:
    return tirx.Or(old, new) if str(old.ty.dtype) == "bool" else old + new


def _multiply(old: Expr, new: Expr) -> Expr:
    return tirx.And(old, new) if str(old.ty.dtype) == "bool" else old * new


COMBINE: dict[str | None, Combine] = {
    None: _replace,
    "add": _add,
    "sum": _add,
    "multiply": _multiply,
    "prod": _multiply,
    "amax": numerics.maximum,
    "amin": numerics.minimum,
}
"""What becomes of the old element and the new one, by torch's names of it."""

COPY, SCATTER = "copy", "scatter"
"""The names of the two blocks: the copy, and what is written to it."""

WHOLE = "babytriton.whole"
"""An annotation of the second: each element of the source is written once, and none is left out."""

_BESIDE = 32
"""Slices that lie side by side and that one CPU thread writes together, in vectors."""

_MANY, _ALL = 64, 1 << 16
"""Writes after one another that a GPU thread does in no time; and threads that keep a GPU busy
while each of them waits for its own writes."""


def _written(
    site: Site,
    input: Value,
    indices: Sequence[Value],
    source: Any,
    combine: Combine,
    slices: Sequence[int],
    count: int,
    dims: Sequence[int],
    places: Callable[..., tuple[Sequence[Expr], Sequence[Expr]]],
) -> Any:
    """A copy of ``input`` with ``count`` writes in each of the slices.

    Args:
        site: of the call.
        input: the tensor to start from; it has dimensions.
        indices: the index tensors.
        source: a value with the elements to write, or one number for all of them.
        combine: the element to write, from the one that is there and the new one.
        slices: how many slices there are, as a shape.
        count: the writes in each, one after the other.
        dims: the dimensions of ``input`` whose places the indices, or numbers, tell.
        places: from the index buffers, a slice's index and the number of a write: the position
            to write to, and the position to read ``source`` at, which broadcasts.
    """
    on_cpu = site.builder.device.type == "cpu"
    if site.builder.device.type == "cuda" and count > _MANY and math.prod(slices) < _ALL:
        raise Unsupported("many writes to few slices would run on few threads")
    # Sums of halves are rounded once, at the end.
    dtype = site.dtype if combine is _replace else opmath(site.dtype)
    shape, name = tuple(input.meta.shape), dtype_of(dtype).name
    tensors = [input, source] if isinstance(source, Value) else [input]
    inputs = [site.expr(x, dtype) for x in tensors] + [x.expr for x in indices]
    kinds = [(x.meta.shape, name) for x in tensors]
    kinds += [(x.meta.shape, dtype_of(x.meta.dtype).name) for x in indices]
    with IRBuilder() as builder:
        with S.prim_func(s_tir=True):
            S.func_name("scatter")
            # By its loads and stores TVM does not always see that nothing may join it.
            S.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
            buffers = [
                S.arg(f"x{i}", S.buffer([int64(n) for n in sizes], kind))
                for i, (sizes, kind) in enumerate(kinds)
            ]
            base, *others = buffers
            picks = others[len(tensors) - 1 :]
            out = S.arg("scatter", S.buffer([int64(n) for n in shape], name))
            with _points(shape, COPY) as index:
                S.buffer_store(out, base[tuple(index)], index)
            last = len(shape) - 1
            is_beside = on_cpu and last not in dims
            tasks: list[Any] = list(slices)
            if is_beside:
                tasks[-1] = tirx.ceildiv(int64(slices[-1]), int64(_BESIDE))
            with _points(tasks, SCATTER) as at:
                if len(tensors) > 1 and combine is _replace and count == 1:
                    S.sblock_attr({WHOLE: int64(1)})
                first, beside = int64(0), int64(1)
                if is_beside:
                    first = at[-1] * int64(_BESIDE)
                    beside = tirx.Min(int64(_BESIDE), int64(slices[-1]) - first)
                place, _ = places(picks, [*at[:-1], first] if is_beside else at, int64(0))
                # Schedules may not spread a block over threads that reads what it writes; this
                # one does so only within its slices.
                S.reads(*(tirx.BufferRegion(x, [_range(n) for n in x.shape]) for x in others))
                ranges = [ir.Range.from_min_extent(i, int64(1)) for i in place]
                for d in dims:
                    ranges[d] = _range(shape[d])
                if is_beside:
                    end, _ = places(picks, [*at[:-1], first + beside - 1], int64(0))
                    span = end[last] - place[last] + 1  # with what steps leave out
                    ranges[last] = ir.Range.from_min_extent(place[last], span)
                S.writes(tirx.BufferRegion(out, ranges))
                lanes = S.serial(int64(0), beside) if is_beside else nullcontext()
                with S.serial(int64(0), int64(count)) as i, lanes as lane:
                    own = [*at[:-1], first + lane] if is_beside else at
                    place, origin = places(picks, own, i)
                    if len(tensors) > 1:
                        new = tirx.BufferLoad(others[0], _broadcast(others[0], origin))
                    else:
                        new = _constant(source, dtype)
                    inside = [tirx.all(place[d] >= 0, place[d] < int64(shape[d])) for d in dims]
                    with S.If(tirx.all(*inside)), S.Then():
                        S.buffer_store(out, combine(out[tuple(place)], new), place)
        function = builder.get()
    written = site.kernel("scatter", function, inputs, TensorType(shape, dtype))
    return site.cast(written, site.dtype)


@contextmanager
def _points(shape: Sequence[Any], name: str) -> Iterator[list[Expr]]:
    """A block for each point of a shape; gives its index."""
    # Schedules hold on to the loop around a block, so a single point has one too.
    extents = [int64(n) for n in shape] or [int64(1)]
    with S.grid(*extents) as loops, S.sblock(name):
        loops = list(loops) if len(extents) > 1 else [loops]
        yield [S.axis.spatial(n, loop) for n, loop in zip(extents, loops)][: len(shape)]


def _range(size: Any) -> ir.Range:
    return ir.Range.from_min_extent(int64(0), int64(size))


def _constant(value: Any, dtype: torch.dtype) -> Expr:
    return tirx.const(number(value, dtype), dtype_of(dtype).name)


def _scattered(
    site: Site, input: Value, dim: int, index: Value, source: Any, combine: Combine
) -> Any:
    """scatter and its like: an index for every element of ``source``."""
    dim %= input.meta.ndim
    sizes = tuple(index.meta.shape)

    def places(picks: Sequence[Any], at: Sequence[Expr], i: Expr) -> Any:
        origin = [*at[:dim], i, *at[dim:]]
        place = list(origin)
        place[dim] = index64(picks[0][tuple(origin)])
        return place, origin

    slices = (*sizes[:dim], *sizes[dim + 1 :])
    return _written(site, input, [index], source, combine, slices, sizes[dim], [dim], places)


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

    def places(picks: Sequence[Any], at: Sequence[Expr], i: Expr) -> Any:
        pick = index64(picks[0][i])
        pick = from_end(pick, int64(sizes[dim])) if wrap else pick
        return [*at[:dim], pick, *at[dim:]], [*at[:dim], i, *at[dim:]]

    slices, count = (*sizes[:dim], *sizes[dim + 1 :]), index.meta.numel()
    flat = index if index.meta.ndim == 1 else index.reshape(-1)
    return _written(site, input, [flat], source, combine, slices, count, [dim], places)


def _index_add(
    site: Site, input: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Any:
    if alpha != 1:
        source = source * alpha
    return _placed(site, input, dim, index, _as_slices(input, dim, source), _add, False)


def _index_copy(site: Site, input: Value, dim: int, index: Value, source: Value) -> Any:
    return _placed(site, input, dim, index, _as_slices(input, dim, source), _replace, False)


def _as_slices(input: Value, dim: int, source: Any) -> Any:
    """A single slice may come without the indexed dimension."""
    return source.unsqueeze(dim) if source.ndim < input.meta.ndim else source


def _index_fill(site: Site, input: Value, dim: int, index: Value, value: Any) -> Any:
    if isinstance(value, Value):
        sizes = list(input.meta.shape) or [1]
        sizes[dim] = index.meta.numel()
        value = value.expand(sizes)
    return _placed(site, input, dim, index, value, _replace, True)


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
    others = [dim for dim in range(len(shape)) if dim not in dims]
    common = torch.broadcast_shapes(*(tuple(x.meta.shape) for x in given))
    # Where the indices stand side by side, their dimensions stand where they stood.
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0

    def places(picks: Sequence[Any], at: Sequence[Expr], i: Expr) -> Any:
        write = _unraveled(i, common)
        place = dict(zip(others, at))
        for dim, pick in zip(dims, picks):
            index = tirx.BufferLoad(pick, _broadcast(pick, write))
            place[dim] = from_end(index64(index), int64(shape[dim]))
        origin = [*at[:first], *write, *at[first:]]
        return [place[dim] for dim in range(len(shape))], origin

    combine = _add if accumulate else _replace
    rest = [shape[dim] for dim in others]
    _require_broadcast(site, values, (*rest[:first], *common, *rest[first:]))
    return _written(site, input, given, values, combine, rest, math.prod(common), dims, places)


def _put_at(site: Site, input: Value, item: Sequence[Any], values: Value) -> Any:
    sizes = tuple(input.meta.shape)
    numbers = [part for part in item if isinstance(part, Value)]
    cuts = {
        dim: cut_of(part, sizes[dim]) for dim, part in enumerate(item) if isinstance(part, slice)
    }
    dims = [dim for dim in range(len(sizes)) if dim not in cuts]
    lengths = [cut.length for cut in cuts.values()]

    def places(picks: Sequence[Any], at: Sequence[Expr], _: Expr) -> Any:
        told, along = iter(picks), iter(at)
        found: list[Expr] = []
        for dim, (part, size) in enumerate(zip(item, sizes)):
            if dim in cuts:
                found.append(int64(cuts[dim].start) + next(along) * int64(cuts[dim].step))
            elif isinstance(part, Value):
                found.append(from_end(index64(next(told)[()]), int64(size)))
            else:
                found.append(int64(from_start(part, size)))
        return found, list(at)

    _require_broadcast(site, values, tuple(lengths))
    return _written(site, input, numbers, values, _replace, lengths, 1, dims, places)


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


def _broadcast(buffer: Any, index: Sequence[Expr]) -> list[Expr]:
    """The index of the element of a buffer that stands at one of what it broadcasts to."""
    own = list(index)[len(index) - len(buffer.shape) :]
    return [
        int64(0) if isinstance(n, tirx.IntImm) and int(n) == 1 else i
        for n, i in zip(buffer.shape, own)
    ]


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
