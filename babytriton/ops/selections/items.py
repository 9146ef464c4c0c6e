"""``x[mask]``, read and written."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops.refusals import IllTyped, Mutation
from babytriton.ops.selections.equality import are_equal
from babytriton.ops.selections.places import mask_of
from babytriton.ops.selections.selection import UNKNOWN, Selection, spread, where
from babytriton.ops.sizes import is_one
from babytriton.ops.subscript import require_one_dtype
from babytriton.ops.table import Callee
from babytriton.ops.value import DataDependent, Scalar, Value
from babytriton.types import TensorType

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

T = torch.Tensor

_GETITEM = (operator.getitem, T.__getitem__)
_SELECT = (torch.masked_select, T.masked_select)


def is_mask(item: Any) -> bool:
    """Whether an index is a mask, which selects elements by its own numbers."""
    return isinstance(item, Value) and item.meta.dtype == torch.bool and item.meta.ndim > 0


def has_mask(item: Any) -> bool:
    """Whether a mask stands between the brackets."""
    return any(map(is_mask, item)) if isinstance(item, tuple) else is_mask(item)


def as_mask(owner: Any, item: Any) -> Any:
    """What stands between brackets, with a mask in place of all the places where it is true."""
    mask = mask_of(item)
    if mask is None or tuple(owner.meta.shape[: mask.meta.ndim]) != tuple(mask.meta.shape):
        return item
    return mask


def selects(fn: Callee, args: tuple[Any, ...]) -> bool:
    """Whether a call selects by a mask, from a tensor or from what another one has selected."""
    if fn in _SELECT:
        return len(args) == 2 and is_mask(args[1])
    return fn in _GETITEM and len(args) == 2 and has_mask(as_mask(*args))


def select(builder: Builder, fn: Callee, args: tuple[Any, ...]) -> Selection:
    """``x[mask]``, where other parts between the brackets are numbers and slices.

    Raises:
        DataDependent: some are tensors, or there is another mask.
        IllTyped: the mask does not fit the tensor.
    """
    whole, item = args[0], as_mask(*args)
    if fn in _SELECT:
        shape = torch.broadcast_shapes(*(tuple(x.meta.shape) for x in args))
        whole, item = whole.expand(shape), item.expand(shape)
    if isinstance(whole, Selection):
        return _narrowed(builder, whole, item)
    view, mask, axis = _viewed(builder, whole, item)
    return _of(builder, view, mask, axis)


def _of(builder: Builder, view: Value, mask: Value, axis: int) -> Selection:
    if builder.tape.depends((view,)):
        # Infinities in elements that are not selected must not reach the others' gradients.
        view = where(spread(mask, view.meta.ndim - axis - mask.meta.ndim), view, 0)
        expr = view.expr
    else:
        expr = builder.unfollowed(view.expr)  # It may be selected where no gradients are recorded.
    copy = builder.value(expr, builder.meta(TensorType.of(view.meta)))
    still = Value(builder, mask.expr, mask.meta)
    return Selection(copy, still, axis, still)


def _narrowed(builder: Builder, owner: Selection, item: Any) -> Selection:
    """What a mask selects of what another one has selected."""
    owner, mask = _combined(builder, owner, item)
    return _of(builder, owner.whole, mask, 0)


def _combined(builder: Builder, owner: Selection, item: Any) -> tuple[Selection, Value]:
    """What one mask has selected, and the mask that selects of the whole what another does of it.

    Raises:
        DataDependent: the mask is of another selection.
    """
    mask = item[0] if isinstance(item, tuple) and len(item) == 1 else item
    if not isinstance(mask, Selection) or not are_equal(builder, mask.by, owner.by):
        raise DataDependent(
            "getitem", "the second mask must be computed from what the first selects"
        )
    if mask.dims != owner.dims:
        owner, mask = owner.flat, mask.flat
    if mask.dims != owner.dims:
        raise DataDependent("getitem", UNKNOWN)
    return owner, builder.call(torch.logical_and, (mask.whole, mask.spread), {})


def _viewed(builder: Builder, owner: Value, item: Any) -> tuple[Value, Value, int]:
    """What a mask among other indices selects from, the mask, and the first of its dimensions.

    Raises:
        DataDependent: other indices are tensors too.
        IllTyped: the mask does not fit.
    """
    items = list(item) if isinstance(item, tuple) else [item]
    masks = [part for part in items if is_mask(part)]
    if len(masks) > 1 or any(isinstance(p, (Value, list)) and not is_mask(p) for p in items):
        raise DataDependent("getitem", "select by the mask first: x[mask][..., i]")
    [mask] = masks
    rank = mask.meta.ndim
    used = sum(rank if is_mask(p) else p is not None and p is not Ellipsis for p in items)
    rest = [slice(None)] * (owner.meta.ndim - used)
    if not any(part is Ellipsis for part in items):
        items.append(Ellipsis)
    basic: list[Any] = []
    axis = 0
    for part in items:
        if is_mask(part):
            axis = sum(not isinstance(before, int) for before in basic)
            basic += [slice(None)] * rank
        else:
            basic += rest if part is Ellipsis else [part]
    view = owner
    if any(part != slice(None) for part in basic):
        view = builder.call(operator.getitem, (owner, tuple(basic)), {})
    sizes = tuple(view.meta.shape)
    if tuple(mask.meta.shape) != sizes[axis : axis + rank]:
        shapes = list(mask.meta.shape), list(sizes)
        raise IllTyped("a mask of shape {} does not fit a tensor of shape {}".format(*shapes))
    return view, mask, axis


def write(builder: Builder, owner: Value, item: Any, new: Any) -> None:
    """``owner[mask] = new``: chosen where the mask is true.

    Args:
        builder: emits it.
        owner: a tensor, or what a mask selects.
        item: what stands between the brackets, a mask in it or not for a selection.
        new: a number, a tensor that broadcasts, or what an equal mask selects.

    Raises:
        IllTyped: the mask does not fit the tensor, or the tensor what it selects.
        Mutation: it is a tensor of as many elements as the mask selects.
    """
    if isinstance(owner, Selection):
        if not has_mask(item):
            part = builder.call(operator.getitem, (owner, item), {})
            builder.call(T.copy_ if isinstance(new, Value) else T.fill_, (part, new), {})
            return
        selected, item = _combined(builder, owner, item)
        owner = selected.whole
    view, mask, axis = _viewed(builder, owner, item)
    rank = mask.meta.ndim
    after = view.meta.ndim - axis - rank
    chosen = _chosen(builder, new, mask, axis, after)
    if chosen is None:
        chosen = builder.call(torch.full, ((), new), {"dtype": view.meta.dtype})
    elif chosen.meta.numel() == 1:
        chosen = chosen.to(view.meta.dtype)
    require_one_dtype(view, chosen)
    shapes = tuple(chosen.meta.shape), tuple(view.meta.shape)
    if not _expands(*shapes):
        raise IllTyped("the shapes do not fit: {} into {}".format(*shapes))
    builder.memory.write(view, where(spread(mask, after), chosen, view).expr)


def _chosen(builder: Builder, new: Any, mask: Value, axis: int, after: int) -> Value | None:
    """A tensor that is assigned, for all elements that a mask selects from; ``None`` for numbers.

    Args:
        builder: emits it.
        new: the tensor, or a number.
        mask: says where it is assigned.
        axis: how many dimensions there are before those that the mask selects from.
        after: how many after them.
    """
    if not isinstance(new, Value) or isinstance(new, Scalar):
        return None
    if isinstance(new, Selection):
        if not are_equal(builder, new.by, mask):
            raise Mutation(_OTHERS, _ALIKE)
        before, behind = new.whole.meta.shape[: new.axis], new.whole.meta.shape[new.dims.stop :]
        if len(behind) != after:
            raise IllTyped("the dimension that the mask selects is at another place")
        new, sizes = new.whole, (*before, *mask.meta.shape, *behind)
    else:
        extra = new.meta.ndim - (axis + 1 + after)
        sizes = tuple(new.meta.shape)
        if extra > 0 and all(map(is_one, sizes[:extra])):
            sizes = sizes[extra:]
        place = len(sizes) - 1 - after
        if place < 0:
            return new
        if not is_one(sizes[place]):
            raise Mutation(_COUNTED, _ALIKE)
        sizes = (*sizes[:place], *[1] * mask.meta.ndim, *sizes[place + 1 :])
    found: Value = new.reshape(sizes)
    return found


def _expands(shape: tuple[Any, ...], to: tuple[Any, ...]) -> bool:
    """Whether a tensor of a shape broadcasts to another one."""
    pairs = zip(reversed(shape), reversed(to))
    return len(shape) <= len(to) and all(is_one(one) or one == other for one, other in pairs)


_COUNTED = "how many elements a mask selects depends on data"
_OTHERS = "another mask may select another number of elements"
_ALIKE = "assign what the same mask selects, x[mask] = y[mask], or use torch.where(mask, y, x)"
