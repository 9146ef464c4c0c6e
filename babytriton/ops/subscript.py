"""``x[...]``: numbers, slices, None, Ellipsis, and tensors of indices."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any

import torch
from tvm import relax, te, tirx

from babytriton.ops import numerics
from babytriton.ops.counted import Picks
from babytriton.ops.gradients import subscript as gradients
from babytriton.ops.refusals import IllTyped, Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64, is_known, is_one, is_symbolic
from babytriton.ops.table import Op
from babytriton.ops.value import Scalar, Value
from babytriton.types import dtype_of

T = torch.Tensor

_TOO_MANY_DIMS = 32
"""As long a list is always one of indices."""


def checked(
    x: te.Tensor, places: Sequence[Any], dims: Sequence[int], *, wraps: bool = False
) -> Any:
    """``x[places]``, or NaN (zero for integers) where it lies outside of ``x``.

    A kernel cannot raise as torch does on the CPU; it must not read other memory either.

    Args:
        x: the tensor to read.
        places: a position in each dimension.
        dims: those in which the position came from a tensor.
        wraps: whether negative ones of these count from the end.
    """
    inside = [is_inside(places[dim], x.shape[dim], wraps=wraps) for dim in dims]
    found = x(
        *(
            from_end(place, x.shape[dim]) if wraps and dim in dims else place
            for dim, place in enumerate(places)
        )
    )
    if not dims:
        return found
    missing = numerics.like(found, math.nan if numerics.is_float(found) else 0)
    # Not Select, which reads before it chooses; clamping for it does not help, as TVM knows the
    # condition and takes the clamp away again.
    return tirx.if_then_else(tirx.all(*inside), found, missing)


def index64(place: Any) -> Any:
    """An element of an index tensor as an address."""
    return place.astype("int64")


def is_inside(place: Any, size: Any, *, wraps: bool) -> Any:
    """Whether a position is one of a dimension, also from the end if it wraps."""
    return tirx.all(place >= (-size if wraps else 0), place < size)


def from_end(place: Any, size: int) -> Any:
    """Negative indices count from the end."""
    return tirx.Select(place < 0, place + size, place)


def expanded(item: Any, ndim: int) -> list[Any]:
    """What stands between the brackets, one item a dimension (or None), without Ellipsis."""
    items = list(item) if isinstance(item, tuple) else [item]
    first = next((i for i, part in enumerate(items) if part is Ellipsis), len(items))
    # The first stands for all that no other part stands for.
    items[first + 1 :] = [part for part in items[first + 1 :] if part is not Ellipsis]
    used = sum(1 for part in items if part is not None and part is not Ellipsis)
    return items[:first] + [slice(None)] * (ndim - used) + items[first + 1 :]


def of_dims(item: Any) -> Any:
    """What stands between the brackets, as a tuple where torch takes a list for one.

    It does so with a short list of not just numbers: ``x[[rows, columns]]`` is
    ``x[rows, columns]``, and ``x[[0, 2]]`` is ``x[torch.tensor([0, 2])]``.
    """
    apart = (Value, torch.Tensor, Sequence, slice, EllipsisType, NoneType)
    is_tuple = isinstance(item, list) and any(
        isinstance(part, apart) and not isinstance(part, Scalar) for part in item
    )
    return tuple(item) if is_tuple and len(item) < _TOO_MANY_DIMS else item


def numbered(item: Any, sizes: Sequence[int]) -> Any:
    """The same places, where a list of bools is one of the numbers of those that are true.

    Args:
        item: what stands between the brackets.
        sizes: of the tensor before them.

    Raises:
        IllTyped: such a list is not as long as its dimension.
    """
    parts = item if isinstance(item, tuple) else (item,)
    taken = [part for part in parts if part is not None and part is not Ellipsis]
    others = any(
        isinstance(part, bool) or (isinstance(part, Value) and part.meta.dtype == torch.bool)
        for part in taken
    )
    if others or len(taken) > len(sizes) or not any(map(_is_mask, taken)):
        return item  # torch says what is wrong with it, if anything is
    dim, found = 0, []
    for part in expanded(item, len(sizes)):
        if _is_mask(part):
            if len(part) != sizes[dim]:
                why = f"a mask of {len(part)} elements for dimension {dim} with size {sizes[dim]}"
                raise IllTyped(why)
            part = [i for i, is_taken in enumerate(part) if is_taken]
        found.append(part)
        dim += part is not None
    return tuple(found)


def _is_mask(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and all(isinstance(each, bool) for each in part)


def require_within(part: Any, dim: int, size: int) -> None:
    """Nothing, but for a list of indices, perhaps of such lists.

    Raises:
        IllTyped: one of them is surely none of the dimension's.
    """
    if isinstance(part, list):
        for each in part:
            require_within(each, dim, size)
    elif isinstance(part, int) and not is_symbolic(size) and not -size <= part < size:
        raise IllTyped(f"index {part} is out of bounds for dimension {dim} with size {size}")


def _getitem(site: Site, input: Value, item: Any) -> Any:
    """Basic indexing first, as torch does, then all tensors of indices at once."""
    items = expanded(item, input.meta.ndim)
    if any(isinstance(part, bool) for part in items):
        raise Unsupported("a bool as an index")
    sizes = input.meta.shape
    cuts: dict[int, Cut] = {}
    dropped: list[int] = []
    added: list[int] = []
    indices: dict[int, Value] = {}
    source = result = 0
    for part in items:
        if part is None:
            added.append(result)
        elif isinstance(part, (int, torch.SymInt)):
            cuts[source] = Cut(from_start(part, sizes[source]), 1, 1)
            dropped.append(source)
        elif isinstance(part, slice):
            cuts[source] = cut_of(part, sizes[source])
        else:
            require_within(part, source, sizes[source])
            indices[result] = as_index(site, part)
        source += part is not None
        result += not isinstance(part, (int, torch.SymInt))
    expr = take_slices(site, input.expr, cuts, sizes)
    if dropped:
        expr = site.emit(relax.op.squeeze(expr, dropped))
    if indices and not any(index.meta.ndim for index in indices.values()):
        return _row(site, expr, indices, added)
    if added:
        expr = site.emit(relax.op.expand_dims(expr, added))
    return _gathered(site, expr, indices, site.shape) if indices else expr


def _row(site: Site, expr: relax.Expr, indices: Mapping[int, Value], added: Sequence[int]) -> Any:
    """What lies at numbers of the run time; dimensions are added to what was taken, not before.

    Args:
        site: of the call.
        expr: what is read.
        indices: the numbers, by their dimensions; those that are added count as well.
        added: dimensions of size 1.
    """

    def without(dim: int, others: Iterable[int]) -> int:
        return dim - sum(other < dim for other in others)

    new = [without(dim, indices) for dim in added]
    shape = [n for dim, n in enumerate(site.shape) if dim not in new]
    taken = {without(dim, added): index for dim, index in indices.items()}
    found = _gathered(site, expr, taken, shape)
    return relax.op.expand_dims(site.emit(found), new) if new else found


@dataclass(frozen=True)
class Cut:
    """What a slice takes of a dimension: so many elements, ``step`` apart."""

    start: Any
    step: Any
    length: Any

    def is_whole(self, size: int) -> bool:
        """Whether it takes all of a dimension, for whatever sizes the program is for."""
        return all(map(is_known, (self.start == 0, self.step == 1, self.length == size)))


def take_slices(
    site: Site, expr: relax.Expr, cuts: Mapping[int, Cut], sizes: Sequence[int]
) -> relax.Expr:
    """``expr`` with some of its dimensions cut; ``sizes`` is its shape."""
    cuts = {d: cut for d, cut in cuts.items() if not cut.is_whole(sizes[d])}
    if not cuts:
        return expr
    shape = [cuts[d].length if d in cuts else n for d, n in enumerate(sizes)]

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        places = list(index)
        for d, cut in cuts.items():
            places[d] = int64(cut.start) + index[d] * int64(cut.step)
        return tensors[0](*places)

    return site.compute("slice", shape, body, expr)


def cut_of(part: slice, size: int) -> Cut:
    """What a slice means for a dimension, by Python's rules, which symbolic sizes follow as well.

    The size is not 0, nor is what is taken: torch runs what has no elements.
    """
    start: Any = 0 if part.start is None else from_start(part.start, size)
    stop: Any = size if part.stop is None else from_start(part.stop, size)
    # Where torch has compared the two, the sizes of what it gives are without a bound.
    start = start if is_known(start >= 0) else torch.sym_max(start, 0)
    stop = stop if is_known(stop <= size) else torch.sym_min(stop, size)
    step = 1 if part.step is None else part.step
    return Cut(start, step, (stop - start + step - 1) // step)


def from_start(place: Any, size: int) -> Any:
    """A place that counts from the end where it is negative."""
    return place + size if place < 0 else place


def _gathered(
    site: Site, expr: relax.Expr, indices: Mapping[int, Value], shape: Sequence[int]
) -> Any:
    """Advanced indexing: the index tensors broadcast together.

    Their common shape stands where they stood, or in front if they were apart. One without
    dimensions counts as a number, which only drops its own.
    """
    dims = sorted(indices)
    shaped = [dim for dim in dims if indices[dim].meta.ndim]
    kept = [dim for dim in range(len(expr.ty.shape)) if dim in shaped or dim not in dims]
    given = Picks.of(expr.ty.shape, dims, [indices[dim] for dim in dims])
    ranks = [kept.index(dim) for dim in shaped]
    adjacent = ranks == list(range(ranks[0], ranks[-1] + 1)) if ranks else False
    at = ranks[0] if adjacent else 0
    rank = len(given.common)

    def body(tensors: Sequence[Any], *index: Any) -> Any:
        x, *picks = tensors
        where = index[at : at + rank]
        others = iter((*index[:at], *index[at + rank :]))
        places: list[Any] = []
        for dim in range(len(x.shape)):
            if dim in given.counted:
                places.append(where[given.counted[dim]])
            elif dim in indices:
                pick = picks[given.picked.index(dim)]
                places.append(index64(broadcast_read(pick, where)))
            else:
                places.append(next(others))
        return checked(x, places, given.picked, wraps=True)

    picks = [indices[dim].expr for dim in given.picked]
    return site.gather("index", shape, body, expr, *picks)


def broadcast_read(x: te.Tensor, index: Sequence[Any]) -> Any:
    """An element of ``x`` broadcast to the dimensions that ``index`` runs over."""
    own = index[len(index) - len(x.shape) :]
    return x(*(int64(0) if is_one(n) else i for n, i in zip(x.shape, own)))


def as_index(site: Site, part: Any) -> Value:
    """A tensor of indices, from one or from nested lists of numbers."""
    value: Value = part
    if not isinstance(part, Value):
        value = site.builder.call(torch.tensor, (part,), {})
    if value.meta.dtype in (torch.bool, torch.uint8):
        raise Unsupported("how many elements a mask selects depends on data")
    return value


ROWS: tuple[Op, ...] = (
    Op("getitem", (operator.getitem, T.__getitem__), _getitem, gradient=gradients.getitem),
)


def require_one_dtype(target: Value, new: Value) -> None:
    """Refuse to put a tensor at indexed places of one with another dtype, as torch does.

    Raises:
        IllTyped: they have different ones.
    """
    dtypes = [dtype_of(value.meta.dtype).name for value in (target, new)]
    if dtypes[0] != dtypes[1]:
        raise IllTyped(
            "a tensor of {} cannot be put at indexed places of one of {}".format(*dtypes[::-1])
        )
