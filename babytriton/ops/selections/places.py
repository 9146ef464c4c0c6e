"""Where a mask is true, as indices: ``torch.nonzero(mask)``, and what is read and written there."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops.selections.calls import Call, axes_of, guarded, shaped, shapes_of
from babytriton.ops.selections.equality import are_equal
from babytriton.ops.selections.selection import UNKNOWN, Selection
from babytriton.ops.sizes import is_one
from babytriton.ops.subscript import expanded
from babytriton.ops.table import Callee
from babytriton.ops.value import DataDependent, Scalar, Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

T = torch.Tensor

_NONZERO = (torch.nonzero, T.nonzero, torch.argwhere, T.argwhere)
_WHERE = (torch.where, T.where)


class Places(Selection):
    """The places along one dimension of a mask at which it is true.

    Args:
        whole: all places along that dimension.
        mask: of which there are some.
        dim: of the mask.
    """

    def __init__(self, whole: Value, mask: Value, dim: int) -> None:
        super().__init__(whole, mask, 0, mask)
        self.dim = dim

    @property
    def is_as_found(self) -> bool:
        """Whether nothing was written to it."""
        storage = self.whole.storage
        return storage is None or storage.version is storage.first[1]


def finds(fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call gives the places at which a tensor is not zero."""
    if not args or not isinstance(args[0], Value) or isinstance(args[0], (Scalar, Selection)):
        return False
    if fn in _WHERE:
        return len(args) == 1 and not kwargs and args[0].meta.ndim > 0
    return fn in _NONZERO and len(args) <= 2 and args[0].meta.ndim > 0


def find(builder: Builder, fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Such a call: one tensor of indices for each dimension, or all of them in one tensor."""
    value: Any = args[0]
    mask = value if value.meta.dtype == torch.bool else value != 0
    mask = Value(builder, mask.expr, mask.meta)
    shape = tuple(mask.meta.shape)
    places = []
    for dim, size in enumerate(shape):
        line: Any = builder.call(torch.arange, (size,), {})
        sizes = [size if d == dim else 1 for d in range(len(shape))]
        whole = line.reshape(sizes).expand(shape) if len(shape) > 1 else line
        places.append(Places(whole, mask, dim))
    if fn in _WHERE or kwargs.get("as_tuple", False):
        return tuple(places)
    stacked: Value = builder.call(torch.stack, ([place.whole for place in places], -1), {})
    return Selection(stacked, mask, 0, mask)


def mask_of(item: Any) -> Value | None:
    """The mask that stands for indices, where these are all the places at which it is true."""
    parts = item if isinstance(item, tuple) else (item,)
    places = [part for part in parts if isinstance(part, Places)]
    dims = [place.dim for place in places]
    if not places or len(places) < len(parts) or dims != list(range(places[0].mask.meta.ndim)):
        return None
    first = places[0].mask
    alike = all(place.mask is first and place.is_as_found for place in places)
    return first if alike else None


def indexed(call: Call) -> Any:
    """``x[...]`` of what a mask selects, or at places that it selects."""
    if isinstance(call.args[0], Selection):
        return shaped(call)
    return guarded(call.flat)


def adding(call: Call) -> Any:
    """``index_add`` and its like, at places that a mask selects: no others are written to."""
    call = call.flat
    names = ("input", "dim", "index", "source")
    target, dim, index, source = (call.argument(at, name) for at, name in enumerate(names))
    if isinstance(target, Selection) or not isinstance(index, Selection) or index.ndim != 1:
        raise call.refuse()
    if isinstance(source, Selection) and source.axis != dim % target.meta.ndim:
        raise call.refuse()
    if isinstance(source, Value) and not isinstance(source, (Selection, Scalar)):
        raise call.refuse()
    # What is written outside of a tensor is written nowhere.
    outside = target.meta.shape[dim]
    return call.on_wholes(lambda x: x.filled(outside) if x is index else x.refilled.whole)


def outside(
    builder: Builder, owner: Value, item: tuple[Any, ...], new: Any
) -> tuple[tuple[Any, ...], Any]:
    """What to put where for ``owner[item] = new``, where a mask selects the places.

    Raises:
        DataDependent: how much is put there depends on data.
    """
    call = Call(builder, "setitem", operator.getitem, (owner, item), {}).flat
    item = call.args[1]
    axis = axes_of(call)[0]
    ndim = len(shapes_of(call, None)[0])
    if isinstance(new, Selection):
        found = new.flat
        if not are_equal(builder, found.by, call.first.by):
            raise DataDependent("setitem", UNKNOWN)
        if found.ndim - found.axis != ndim - axis:
            raise DataDependent("setitem", UNKNOWN)
        new = found.refilled.whole
    elif isinstance(new, Value) and not isinstance(new, Scalar):
        place = new.meta.ndim - (ndim - axis)
        if place >= 0 and not is_one(new.meta.shape[place]):
            raise DataDependent("setitem", UNKNOWN)
    parts = expanded(item, owner.meta.ndim)
    sizes = iter(owner.meta.shape)
    put = []
    for part in parts:
        size = None if part is None else next(sizes)
        put.append(part.filled(size) if isinstance(part, Selection) else part)
    return tuple(put), new


def has_places(item: Sequence[Any]) -> bool:
    """Whether a mask selects some of the indices between brackets."""
    return any(isinstance(part, Selection) for part in item)
