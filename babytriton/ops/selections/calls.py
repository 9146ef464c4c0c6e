"""Calls of torch on what masks select, as calls on the tensors that they select from."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops.meta import tensors_of, typed
from babytriton.ops.refusals import IllTyped
from babytriton.ops.selections.equality import are_equal
from babytriton.ops.selections.selection import UNKNOWN, Count, Selection, where
from babytriton.ops.sizes import is_known, is_one
from babytriton.ops.subscript import expanded
from babytriton.ops.table import Callee
from babytriton.ops.value import DataDependent, Value, map_values, values_in

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

_SIZES = (1_000_003, 2_000_003)
"""Sizes that are tried for what a mask selects: primes, which no other size is by chance."""


_ALIASES = {
    "dim": ("axis", "dims"),
    "keepdim": ("keepdims",),
    "other": ("mat2", "vec"),
    "source": ("value",),
}
"""Other names of arguments."""


@dataclass(frozen=True)
class Call:
    """A call of torch with selections among its arguments.

    Attributes:
        builder: emits it.
        name: of the row of what is called, or of what it does before it writes.
        fn, args, kwargs: the call.
        target: what it writes to, if it does.
    """

    builder: Builder
    name: str
    fn: Callee
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Value | None = None

    @property
    def selections(self) -> list[Selection]:
        """The selections among the arguments, in order."""
        return [x for x in values_in((self.args, self.kwargs)) if isinstance(x, Selection)]

    @property
    def first(self) -> Selection:
        """The first of them."""
        return self.selections[0]

    @property
    def flat(self) -> Call:
        """The same call of selections with masks of one dimension, by one mask.

        Raises:
            DataDependent: they are selected by different masks.
        """
        first = self.first.flat

        def flattened(value: Value) -> Value:
            if not isinstance(value, Selection):
                return value
            self.require_alike(value)
            found = value.flat
            return Selection(found.whole, first.mask, found.axis, first.by)

        args, kwargs = map_values((self.args, self.kwargs), flattened)
        return replace(self, args=args, kwargs=kwargs)

    def with_sizes(self, size: int | None) -> Call:
        """The same call where the mask selects so many elements, or all."""
        first = self.first

        def sized(value: Value) -> Any:
            if not isinstance(value, Count):
                return value
            self.require_alike(value.of)
            return first.whole.meta.shape[first.axis] if size is None else size

        args, kwargs = map_values((self.args, self.kwargs), sized)
        return replace(self, args=args, kwargs=kwargs)

    def require_alike(self, other: Selection) -> None:
        """Refuse what another mask selects.

        Raises:
            DataDependent: it does, as far as is known.
        """
        if not are_equal(self.builder, self.first.by, other.by):
            raise DataDependent(self.name, "all must be selected by the same mask")

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument by its position or its name."""
        if at < len(self.args):
            return self.args[at]
        names = (name, *_ALIASES.get(name, ()))
        return next((self.kwargs[x] for x in names if x in self.kwargs), default)

    def along(self, at: tuple[int, int | None] | None) -> tuple[int, ...] | None:
        """The dimensions of a selection that the call looks along.

        Args:
            at: where they stand among the arguments, and which they are by default; none where the
                call has no such argument.

        Returns:
            ``None`` for all, and where they are none.
        """
        dim = None if at is None else self.argument(at[0], "dim", at[1])
        if dim is None or isinstance(dim, (bool, Value)) or dim in ((), []):
            return None
        dims = dim if isinstance(dim, (tuple, list)) else (dim,)
        ndim = self.first.ndim
        if not all(type(d) is int and -ndim <= d < ndim for d in dims):
            return None  # torch says so
        return tuple(d % ndim for d in dims)

    def refuse(self) -> DataDependent:
        """That there is no way to compute it."""
        return DataDependent(self.name, UNKNOWN)

    def on_wholes(self, whole: Callable[[Selection], Any] = lambda x: x.whole) -> Any:
        """Emit the call with other tensors in place of the selections."""

        def put(value: Value) -> Any:
            return whole(value) if isinstance(value, Selection) else value

        args, kwargs = map_values((self.args, self.kwargs), put)
        return self.builder.call(self.fn, args, kwargs)

    def selected(self, result: Any, axes: Mapping[int, int] | int) -> Any:
        """A result's tensors as selections, in order, along these dimensions."""
        by = self.first
        count = iter(range(len(values_in(result))))

        def put(value: Value) -> Value:
            number = next(count)
            axis = axes if isinstance(axes, int) else axes[number]
            return Selection(value, by.mask, axis, by.by)

        return map_values(result, put)


def elementwise(call: Call) -> Any:
    """A function of each element: it is computed of all elements, selected or not."""
    if len({x.mask.meta.ndim for x in call.selections}) > 1:
        call = call.flat
    by = call.first
    after = by.whole.meta.ndim - by.dims.stop
    operands = map_values((call.args, call.kwargs), lambda value: _aligned(call, value, after))
    result = call.builder.call(call.fn, *operands)
    if call.target is not None:
        return call.target
    if not isinstance(result, Value):
        return result
    axis = result.meta.ndim - after - by.mask.meta.ndim
    found = Selection(result, by.mask, axis, by.by)
    sizes = tuple(result.meta.shape)[axis : found.dims.stop]
    if axis < 0 or not all(map(is_known, map(operator.eq, sizes, by.mask.meta.shape))):
        raise call.refuse()
    return found


def _aligned(call: Call, value: Value, after: int) -> Value:
    """An operand of the call on whole tensors.

    Args:
        call: the call.
        value: its operand.
        after: how many dimensions there are after those that masks select from.
    """
    by = call.first
    if isinstance(value, Selection):
        call.require_alike(value)
        if value.whole.meta.ndim - value.dims.stop != after:
            raise IllTyped("the dimensions that masks select from are at different places")
        return value.whole
    place = value.meta.ndim - 1 - after
    if place >= 0:
        sizes = tuple(value.meta.shape)
        if not is_one(sizes[place]):
            raise call.refuse()
        value = value.reshape((*sizes[:place], *[1] * by.mask.meta.ndim, *sizes[place + 1 :]))
    if not call.builder.tape.depends((value,)):
        return value
    # What is not selected may give infinities, whose gradients must not reach it.
    found = where(by.spread, value, 0)
    return found if value.meta.ndim else found.to(torch.result_type(by.meta, value.meta))


def casts(call: Call) -> Any:
    """A cast, which looks only at the dtype of a tensor that it is given as a model."""
    args = tuple(
        other.meta.dtype if i and isinstance(other, Value) else other
        for i, other in enumerate(call.args)
    )
    fn = torch.Tensor.to if args != call.args else call.fn
    return elementwise(replace(call, fn=fn, args=args))


def unless_training(call: Call) -> Any:
    """Dropout where nothing is dropped: how many numbers torch would draw is not known."""
    if call.argument(2, "training", True) is not False:
        raise call.refuse()
    return call.args[0]


def along_others(call: Call) -> Any:
    """A function that looks along other dimensions than those that masks select from."""
    call = call.flat
    return call.selected(call.on_wholes(), axes_of(call))


def guarded(call: Call) -> Any:
    """A call of rows that have other tensors in common.

    Their gradients are sums over rows, in which those that are not selected must be zero.
    """
    shared = [x for x in values_in((call.args, call.kwargs)) if not isinstance(x, Selection)]
    if not call.builder.tape.depends(shared):
        return along_others(call)
    args, kwargs = map_values((call.args, call.kwargs), _refilled)
    return map_values(along_others(replace(call, args=args, kwargs=kwargs)), _refilled)


def _refilled(value: Value) -> Value:
    return value.refilled if isinstance(value, Selection) else value


def shaped(call: Call) -> Any:
    """A function that gives the same elements in other dimensions."""
    call = call.flat
    first = call.first
    if first.axis in (call.along(_ALONG.get(call.name)) or ()) or _takes_some(call):
        raise call.refuse()
    axes = axes_of(call)
    result = call.with_sizes(None).on_wholes()
    if call.name in _RESHAPES:
        sizes = tuple(result.meta.shape)
        before = (first.whole.meta.shape[: first.axis], sizes[: axes[0]])
        if math.prod(before[0]) != math.prod(before[1]):
            raise call.refuse()
    return call.selected(result, axes)


def _takes_some(call: Call) -> bool:
    """Whether a call may take some of what the mask selects, or drop the dimension of one."""
    if call.name == "squeeze":
        dims = call.along((1, None))
        return dims is None or call.first.axis in dims
    if call.name != "getitem":
        return False
    item = call.args[1]
    parts = [part for part in expanded(item, call.first.ndim) if part is not None]
    part = parts[call.first.axis]
    return not isinstance(part, slice) or part != slice(None)


_ALONG: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "chunk", "tensor_split"), (2, 0)),
    **dict.fromkeys(("unbind", "cat"), (1, 0)),
    **dict.fromkeys(("narrow", "select"), (1, None)),
}
"""Where functions that cut and join have their dimension, and which one it is by default."""

_RESHAPES = frozenset(("reshape", "view", "flatten", "unflatten", "ravel"))


def axes_of(call: Call) -> dict[int, int]:
    """The dimension of each result that is as long as the mask selects, by the results' numbers.

    Raises:
        DataDependent: there is none, or it is not known.
    """
    try:
        one, other = (shapes_of(call, size) for size in _SIZES)
    except IllTyped:
        shapes_of(call, None)  # torch may refuse it for any size
        raise call.refuse() from None
    axes = {}
    for number, (shape, second) in enumerate(zip(one, other)):
        differing = [d for d, sizes in enumerate(zip(shape, second)) if sizes == _SIZES]
        expected = [second[d] if d in differing else size for d, size in enumerate(shape)]
        if len(one) != len(other) or len(differing) != 1 or expected != list(second):
            raise call.refuse()
        [axes[number]] = differing
    return axes


def shapes_of(call: Call, size: int | None) -> list[tuple[Any, ...]]:
    """The shapes of the results where a mask selects so many elements, or all."""

    def sized(value: Value) -> Value:
        if not isinstance(value, Selection):
            return value
        shape = list(value.whole.meta.shape)
        shape[value.axis] = shape[value.axis] if size is None else size
        return Value(call.builder, value.mask.made, value.whole.meta.new_empty(shape))

    call = call.with_sizes(size)
    args, kwargs = map_values((call.args, call.kwargs), sized)
    found = typed(call.builder.device, call.builder.symbols, call.fn, args, kwargs)
    return [tuple(meta.shape) for meta in tensors_of(found)]
