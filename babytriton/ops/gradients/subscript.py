"""The gradient of ``x[...]``."""

from __future__ import annotations

from typing import Any

import torch

from babytriton.ops.counted import Picks
from babytriton.ops.gradients.indexing import added_at
from babytriton.ops.gradients.positions import is_place, padded, wrapped
from babytriton.ops.refusals import Unsupported
from babytriton.ops.value import Value


def getitem(grad: Any, result: Any, input: Any, item: Any) -> Any:
    """Of the elements that were taken: back through the indices, and then through the rest."""
    if any(type(n) is int and n == 0 for n in grad.shape):
        return torch.zeros_like(input)
    parts = [_index(input, part) for part in _expanded(item, input.ndim)]
    kept = [part for part in parts if not _is_number(part)]
    dims = [dim for dim, part in enumerate(kept) if isinstance(part, Value)]
    indices = [kept[dim] for dim in dims]
    common = torch.broadcast_shapes(*(tuple(index.shape) for index in indices)) if dims else ()
    # Their common shape stands where they stood, or in front if they were apart.
    at = dims[0] if dims and dims == list(range(dims[0], dims[-1] + 1)) else 0
    rest = iter([*grad.shape[:at], *grad.shape[at + len(common) :]])
    sizes = iter(input.shape)
    lengths: list[Any] = []  # of the input's dimensions, once numbers and slices were taken
    shape: list[Any] = []  # of what the indices were taken of
    for part in parts:
        size = 1 if part is None else next(sizes)
        if _is_number(part):
            lengths.append(1)
            continue
        shape.append(size if isinstance(part, Value) else next(rest))
        lengths += [] if part is None else [shape[-1]]
    if dims:
        grad = _indexed(grad, shape, dims, indices, at, len(common))
    if any(part is None or _is_number(part) for part in parts):
        grad = grad.reshape(lengths)
    return _taken(grad, [part for part in parts if part is not None], list(input.shape))


def _expanded(item: Any, ndim: int) -> list[Any]:
    """One item a dimension, or None, without Ellipsis."""
    items = list(item) if isinstance(item, tuple) else [item]
    if any(isinstance(part, bool) for part in items):
        raise Unsupported("a bool as an index")
    used = sum(1 for part in items if part is not None and part is not Ellipsis)
    ellipsis = next((i for i, part in enumerate(items) if part is Ellipsis), len(items))
    return items[:ellipsis] + [slice(None)] * (ndim - used) + items[ellipsis + 1 :]


def _index(input: Any, part: Any) -> Any:
    """An item with nested lists of numbers as tensors."""
    if part is None or isinstance(part, (slice, int, torch.SymInt)):
        return part
    index = part if isinstance(part, Value) else input.new_tensor(part, dtype=torch.int64)
    if index.dtype in (torch.bool, torch.uint8):
        raise Unsupported("how many elements a mask selects depends on data")
    return index


def _is_number(part: Any) -> bool:
    """Whether an item drops its dimension; of tensors, those without dimensions do."""
    return isinstance(part, (int, torch.SymInt)) or (isinstance(part, Value) and part.ndim == 0)


def _from_start(place: Any, size: Any) -> Any:
    return place + size if place < 0 else place


def _taken(grad: Any, parts: list[Any], sizes: list[Any]) -> Any:
    """Back through numbers and slices, where dropped dimensions have size 1."""
    pads: list[tuple[Any, Any]] = []
    chosen: list[tuple[int, Any]] = []
    for dim, (part, size) in enumerate(zip(parts, sizes)):
        before: Any = 0
        after: Any = 0
        if isinstance(part, slice):
            if part.step is not None and (type(part.step) is not int or part.step != 1):
                grad = _spaced(grad, dim, part.step)
            if part.start is not None:
                before = torch.sym_max(_from_start(part.start, size), 0)
            if part != slice(None):
                after = size - before - grad.shape[dim]
        elif isinstance(part, (int, torch.SymInt)):
            before = _from_start(part, size)
            after = size - before - 1
        elif part.ndim == 0:
            chosen.append((dim, part))
        pads.append((before, after))
    grad = padded(grad, pads)
    for dim, index in chosen:
        index = index.reshape([1] * grad.ndim)
        grad = torch.where(is_place(index, sizes[dim], dim), grad, 0.0)
    return grad


def _spaced(grad: Any, dim: int, step: Any) -> Any:
    """Zeros between the elements of a dimension: so many that these are ``step`` apart."""
    length = grad.shape[dim]
    shape = list(grad.shape)
    shape[dim] = (length - 1) * step + 1
    return grad.new_zeros(shape).slice_scatter(grad, dim, step=step)


def _indexed(
    grad: Any, shape: list[Any], dims: list[int], indices: list[Any], at: int, common: int
) -> Any:
    """Back through tensors of indices, which broadcast together.

    Args:
        grad: of the result.
        shape: of what they were taken of.
        dims: the indexed dimensions of that.
        indices: the indices.
        at: where the dimensions that they broadcast to stand in the result.
        common: how many these are.
    """
    if len(dims) == 1:
        return added_at(grad, shape, dims[0], wrapped(indices[0], shape[dims[0]]))
    order = [*dims, *(dim for dim in range(len(shape)) if dim not in dims)]
    values = grad.movedim(list(range(at, at + common)), list(range(common)))
    zeros = grad.new_zeros([shape[dim] for dim in order])
    adds = not Picks.of(shape, dims, indices).is_one_of_each
    found = torch.index_put(zeros, tuple(indices), values, accumulate=adds)
    return found.permute([order.index(dim) for dim in range(len(shape))])
