"""Joining tensors, and taking them apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tvm import ir, relax, tirx

from babytriton.ops.gradients import joining as gradients
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.subscript import Cut, checked, from_end, index64, take_slices
from babytriton.ops.table import Op
from babytriton.ops.value import Value

T = torch.Tensor


def by_halves(
    values: Sequence[ir.Expr], is_before: Callable[[int, int], ir.Expr], first: int = 0
) -> ir.Expr:
    """One of several values; seven conditions lead to each of a hundred.

    Args:
        values: to choose from.
        is_before: of the numbers of two values, whether the one to choose comes before the second,
            if it does not come before the first.
        first: the number of the first value.
    """
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    one = by_halves(values[:half], is_before, first)
    other = by_halves(values[half:], is_before, first + half)
    # Not Select, as there may be nothing to read of a value that is not chosen.
    return tirx.if_then_else(is_before(first, first + half), one, other)


def _cat(site: Site, tensors: Sequence[Value], dim: int = 0) -> Any:
    dim %= len(site.shape)
    # torch leaves out vectors without elements, whatever the rank of the others.
    tensors = [x for x in tensors if x.meta.ndim == len(site.shape)]

    def body(parts: Sequence[Any], *index: Any) -> Any:
        # From the parts' own sizes, which a kernel knows.
        starts = list(itertools.accumulate((x.shape[dim] for x in parts), initial=int64(0)))
        read = [
            part(*index[:dim], index[dim] - start, *index[dim + 1 :])
            for part, start in zip(parts, starts)
        ]
        return by_halves(read, lambda _, part: index[dim] < starts[part])

    inputs = [site.expr(x, site.dtype) for x in tensors]
    return site.gather("concatenate", site.shape, body, *inputs)


def _stack(site: Site, tensors: Sequence[Value], dim: int = 0) -> Any:
    return relax.op.stack([site.expr(x, site.dtype) for x in tensors], dim % len(site.shape))


def _hstack(tensors: Sequence[Any]) -> Any:
    parts = [torch.atleast_1d(x) for x in tensors]
    return torch.cat(parts, dim=0 if parts[0].ndim == 1 else 1)


def _vstack(tensors: Sequence[Any]) -> Any:
    return torch.cat([torch.atleast_2d(x) for x in tensors], dim=0)


def _dstack(tensors: Sequence[Any]) -> Any:
    return torch.cat([torch.atleast_3d(x) for x in tensors], dim=2)


def _column_stack(tensors: Sequence[Any]) -> Any:
    return torch.cat([x.reshape(-1, 1) if x.ndim < 2 else x for x in tensors], dim=1)


def _block_diag(*tensors: Any) -> Any:
    blocks = [torch.atleast_2d(x) for x in tensors]
    width = sum(x.shape[1] for x in blocks)
    rows, left = [], 0
    for x in blocks:
        rows.append(F.pad(x, (left, width - left - x.shape[1])))
        left += x.shape[1]
    return torch.cat(rows, dim=0)


def _pieces(site: Site, input: Value, _: Any = None, dim: int = 0, **__: Any) -> list[Any]:
    """Slices one after the other; torch has worked their sizes out already.

    A slice each, not relax's split: a slice is inlined into whatever reads it.
    """
    pieces, start, dim = [], 0, dim % input.meta.ndim
    for out in site.out:
        cut = Cut(start, 1, out.shape[dim])
        pieces.append(take_slices(site, input.expr, {dim: cut}, input.meta.shape))
        start += out.shape[dim]
    return pieces


def _split(site: Site, tensor: Value, *args: Any, **kwargs: Any) -> list[Any]:
    return _pieces(site, tensor, *args, **kwargs)


def _hsplit(input: Any, *args: Any, **kwargs: Any) -> Any:
    return input.tensor_split(*args, **kwargs, dim=0 if input.ndim == 1 else 1)


def _vsplit(input: Any, *args: Any, **kwargs: Any) -> Any:
    return input.tensor_split(*args, **kwargs, dim=0)


def _dsplit(input: Any, *args: Any, **kwargs: Any) -> Any:
    return input.tensor_split(*args, **kwargs, dim=2)


def _unbind(site: Site, input: Value, dim: int = 0) -> list[Any]:
    dim %= input.meta.ndim
    sizes = input.meta.shape
    ones = [take_slices(site, input.expr, {dim: Cut(i, 1, 1)}, sizes) for i in range(sizes[dim])]
    return [relax.op.squeeze(one, [dim]) for one in ones]


def _narrow(site: Site, input: Value, dim: int, start: Any, length: int) -> Any:
    dim %= input.meta.ndim
    size = input.meta.shape[dim]
    if not isinstance(start, Value):
        cut = Cut(start + size if start < 0 else start, 1, length)
        return take_slices(site, input.expr, {dim: cut}, input.meta.shape)

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        x, first = tensors
        places = list(index)
        places[dim] = from_end(index64(first()), size) + index[dim]
        return checked(x, places, [dim])

    return site.gather("narrow", site.shape, body, input.expr, start.reshape(()).expr)


def _select(input: Any, dim: int, index: Any) -> Any:
    return input[(slice(None),) * (dim % input.ndim) + (index,)]


def _repeat(site: Site, input: Value, *sizes: Any, **named: Any) -> Any:
    """repeat and tile: torch's repeats and dims, and a shape that torch has worked out."""
    shape = input.meta.shape

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        own = index[len(index) - len(shape) :]
        return tensors[0](*(tirx.floormod(i, int64(n)) for i, n in zip(own, shape)))

    return site.compute("repeat", site.shape, body, input.expr)


def _repeat_interleave(
    site: Site, input: Value, repeats: Any, dim: int | None = None, *, output_size: Any = None
) -> Any:
    if isinstance(repeats, Value):
        raise Unsupported("how often each element repeats depends on data")
    x, axis = input.expr, 0 if dim is None else dim % max(input.meta.ndim, 1)
    if dim is None:
        x = site.emit(relax.op.reshape(x, [int64(input.meta.numel())]))

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        places = list(index)
        places[axis] = tirx.floordiv(index[axis], int64(repeats))
        return tensors[0](*places)

    return site.compute("repeat", site.shape, body, x)


ROWS: tuple[Op, ...] = (
    Op("cat", (torch.cat, torch.concat, torch.concatenate), _cat, gradient=gradients.cat),
    Op("stack", (torch.stack,), _stack, gradient=gradients.stack),
    Op("hstack", (torch.hstack,), decompose=_hstack),
    Op("vstack", (torch.vstack, torch.row_stack), decompose=_vstack),
    Op("dstack", (torch.dstack,), decompose=_dstack),
    Op("column_stack", (torch.column_stack,), decompose=_column_stack),
    Op("block_diag", (torch.block_diag,), decompose=_block_diag),
    Op("split", (torch.split, T.split), _split, gradient=gradients.split),
    Op(
        "split_with_sizes",
        (torch.split_with_sizes, T.split_with_sizes),
        _pieces,
        gradient=gradients.pieces,
    ),
    Op("unsafe_split", (torch.unsafe_split, T.unsafe_split), _split, gradient=gradients.split),
    Op(
        "chunk",
        (torch.chunk, T.chunk, torch.unsafe_chunk, T.unsafe_chunk),
        _pieces,
        gradient=gradients.pieces,
    ),
    Op("tensor_split", (torch.tensor_split, T.tensor_split), _pieces, gradient=gradients.pieces),
    Op("hsplit", (torch.hsplit, T.hsplit), decompose=_hsplit),
    Op("vsplit", (torch.vsplit, T.vsplit), decompose=_vsplit),
    Op("dsplit", (torch.dsplit, T.dsplit), decompose=_dsplit),
    Op("unbind", (torch.unbind, T.unbind, torch.unbind_copy), _unbind, gradient=gradients.unbind),
    Op(
        "narrow",
        (torch.narrow, T.narrow, torch.narrow_copy, T.narrow_copy),
        _narrow,
        gradient=gradients.narrow,
    ),
    Op("select", (torch.select, T.select, torch.select_copy), decompose=_select),
    Op("repeat", (T.repeat,), _repeat, gradient=gradients.repeat),
    Op("tile", (torch.tile, T.tile), _repeat, gradient=gradients.repeat),
    Op(
        "repeat_interleave",
        (torch.repeat_interleave, T.repeat_interleave),
        _repeat_interleave,
        gradient=gradients.repeat_interleave,
    ),
)
