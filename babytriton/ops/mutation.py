"""Calls that write to an argument: the same call without the write, and then the write."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops.assignments import put_at
from babytriton.ops.meta import replace_tensors, typed
from babytriton.ops.refusals import IllTyped, Mutation
from babytriton.ops.selections import items, places
from babytriton.ops.selections.selection import Selection
from babytriton.ops.sizes import is_known
from babytriton.ops.subscript import expanded, require_one_dtype, require_within
from babytriton.ops.table import Callee
from babytriton.ops.unseen_writes import Writer
from babytriton.ops.value import Scalar, Value

if TYPE_CHECKING:
    from babytriton.ops.builder import Builder

T = torch.Tensor

_INDICES = (torch.int8, torch.int16, torch.int32, torch.int64)
"""The dtypes of indices; what has others is a mask, or refused."""

_OPERATORS: dict[Callee, Callee] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.imatmul: operator.matmul,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}


def _copied(input: Any, source: Any, non_blocking: bool = False) -> Any:
    number: Any = source
    if not isinstance(source, Value) or isinstance(source, Scalar):
        return torch.full_like(input, number)
    return source.to(input.dtype).expand(input.shape)


def _filled(input: Any, value: Any) -> Any:
    return _copied(input, value)


_BY_NAME: dict[str, Callee] = {
    "copy_": _copied,
    "fill_": _filled,
    "zero_": torch.zeros_like,
}
"""What has no other spelling than the one in place."""

_ALIKE_IN_NAME = frozenset({"normal_"})
"""Methods whose names without the ending are those of functions that do something else."""

_CHANGES_ITSELF = frozenset(
    {"as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "set_", "share_memory_"}
    | {"squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_", "rename_", "apply_"}
    | {"map_", "map2_", "retain_grad_"}
)
"""Methods that change not the numbers in a tensor, but what the tensor is."""


@dataclass(frozen=True)
class Cloned:
    """A callable in place, applied to a copy: for those that only torch itself can run."""

    fn: Callee

    @property
    def __name__(self) -> str:
        return str(getattr(self.fn, "__name__", self.fn))

    def __call__(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn(input.clone(), *args, **kwargs)


@dataclass(frozen=True)
class Write:
    """A call that writes to an argument.

    Attributes:
        fn: the same call without the write.
        args, kwargs: its arguments.
        targets: what its results are written to.
    """

    fn: Callee
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: tuple[Value, ...]

    @property
    def device(self) -> torch.device | None:
        """Where it is written to."""
        return next((x.device for x in self.targets if isinstance(x, Value)), None)


def find(fn: Callee, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Write | None:
    """The write that a call makes, if it makes one.

    Raises:
        Mutation: it changes a tensor in a way that the language has not.
    """
    if isinstance(fn, (Cloned, Writer)):
        return None
    # An overload's name is followed by its own: "add_.Tensor".
    name = str(getattr(fn, "__name__", "")).partition(".")[0]
    if kwargs.get("out") is not None:
        out = kwargs["out"]
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        targets = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        return Write(fn, args, rest, targets)
    if _is_true(kwargs.get("inplace")):
        return Write(fn, args, {**kwargs, "inplace": False}, args[:1])
    is_torchs = getattr(fn, "__module__", None) == torch.nn.functional.__name__
    place = _place_of_inplace(fn) if is_torchs else None
    if place is not None and place < len(args) and _is_true(args[place]):
        return Write(fn, (*args[:place], False, *args[place + 1 :]), dict(kwargs), args[:1])
    if fn in _OPERATORS:
        return Write(_OPERATORS[fn], args, dict(kwargs), args[:1])
    if not name.endswith("_") or name.endswith("__") or name in ("and_", "or_"):
        return None
    if not str(getattr(fn, "__module__", None) or "torch").startswith("torch"):
        return None  # only torch's names say so
    if name in _CHANGES_ITSELF:
        other = name.removesuffix("_")
        instead = f"use {other}(), which gives another tensor"
        if not callable(getattr(T, other, None)):
            instead = f"call {name}() outside the function"
        raise Mutation(f"`{name}` changes what the tensor is, not the numbers in it", instead)
    return Write(_without_write(fn, name), args, dict(kwargs), args[:1])


def _is_true(argument: Any) -> bool:
    return isinstance(argument, int) and bool(argument)


@cache
def _place_of_inplace(fn: Callee) -> int | None:
    """The number of the argument of torch's functions that says whether they write to the first."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def is_assignment(fn: Callee) -> bool:
    """Whether a call without its write is that of a method which has no other spelling."""
    return fn in _BY_NAME.values()


def _without_write(fn: Callee, name: str) -> Callee:
    if name in _BY_NAME:
        return _BY_NAME[name]
    module = getattr(fn, "__module__", None) or torch.__name__
    if name in _ALIKE_IN_NAME or module == torch.nn.init.__name__:
        return Cloned(fn)  # those of `init` without the ending write as well
    home: Any = T if getattr(T, name, None) is fn else sys.modules.get(module)
    for owner in (home, torch, torch.nn.functional):
        found: Callee | None = getattr(owner, name.removesuffix("_"), None)
        if callable(found):
            return found
    return Cloned(fn)


def make(
    builder: Builder, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], write: Write
) -> Any:
    """Make a write, and return what the call returns: the arguments written to.

    Raises:
        IllTyped: torch refuses the call, or a result does not fit its target.
    """

    def tried(*args: Any, **kwargs: Any) -> Any:
        # On copies: torch says whether the results fit, and no tensor's type changes.
        args = replace_tensors(args, torch.clone)
        return fn(*args, **{key: replace_tensors(x, torch.clone) for key, x in kwargs.items()})

    for target in write.targets:
        if not isinstance(target, Value) or isinstance(target, Scalar):
            raise IllTyped(f"a {type(target).__name__} cannot be written to")
    typed(builder.device, builder.symbols, tried, args, kwargs)
    ours = is_assignment(write.fn)
    run = write.fn if ours else partial(_called, builder, write.fn)
    found = run(*write.args, **write.kwargs)
    results = found if isinstance(found, (tuple, list)) else [found]
    for target, result in zip(write.targets, results):
        kinds = result.meta.dtype, target.meta.dtype
        if not ours and not torch.can_cast(*kinds):
            names = "{} can't be cast to the desired output type {}".format(*kinds)
            raise IllTyped(f"result type {names}".replace("torch.", ""))
        if result.meta.shape != target.meta.shape:
            sizes = f"{tuple(result.meta.shape)} into {tuple(target.meta.shape)}"
            raise IllTyped(f"the result does not fit: {sizes}")
        builder.memory.write(target, result.to(target.meta.dtype).expr)
    if isinstance(found, Value):
        return write.targets[0]
    return tuple(write.targets) if type(found) is tuple else type(found)(write.targets)


def _called(builder: Builder, fn: Callee, *args: Any, **kwargs: Any) -> Any:
    return builder.call(fn, args, kwargs)


def set_items(builder: Builder, owner: Value, item: Any, new: Any) -> None:
    """``owner[item] = new``: into a view for numbers and slices, to given places for tensors."""
    with builder.placement.within(owner.device):
        item = items.as_mask(owner, item)
        if isinstance(owner, Selection) or items.has_mask(item):
            items.write(builder, owner, item, new)
        else:
            _set_items(builder, owner, item, new)


def _set_items(builder: Builder, owner: Value, item: Any, new: Any) -> None:
    if any(isinstance(part, bool) for part in (item if isinstance(item, tuple) else (item,))):
        raise Mutation("True and False as indices select all or nothing", "write it under an if")
    if isinstance(item, tuple):
        item = tuple(list(part) if isinstance(part, range) else part for part in item)
    elif isinstance(item, (Value, list, range)):
        item = (list(item) if isinstance(item, range) else item,)
    if not isinstance(item, tuple) or not any(isinstance(part, (Value, list)) for part in item):
        view = builder.call(operator.getitem, (owner, item), {})
        shape = tuple(view.meta.shape)
        fitted = _fitted(builder, new, len(shape), view.meta.dtype).expand(shape)
        builder.memory.write(view, fitted.expr)
    elif any(_is_old_mask(part) for part in item):
        raise Mutation(f"a mask of {torch.uint8} is no longer one", "mask.bool() selects")
    else:
        if places.has_places(item):
            item, new = places.outside(builder, owner, item, new)
        _write_places(builder, owner, expanded(item, owner.meta.ndim), new)


def _write_places(builder: Builder, owner: Value, parts: list[Any], new: Any) -> None:
    """At numbers and slices at once; else ``torch.index_put`` into the view that these give."""
    if all(map(_is_number_or_slice, parts)):
        item = tuple(_index(builder, x) if isinstance(x, Value) else x for x in parts)
        found = builder.call(operator.getitem, (owner, item), {})
        if not is_known(found.meta.numel() == 0):
            value = _fitted(builder, new, found.meta.ndim, owner.meta.dtype)
            builder.memory.write(owner, builder.call(put_at, (owner, item, value), {}).expr)
            return
    given = [isinstance(part, (Value, list)) for part in parts]
    basic = tuple(slice(None) if ours else part for ours, part in zip(given, parts))
    is_all = all(isinstance(part, slice) and part == slice(None) for part in basic)
    view = owner if is_all else builder.call(operator.getitem, (owner, basic), {})
    of_dims = (part for part in parts if part is not None)
    for dim, (part, size) in enumerate(zip(of_dims, owner.meta.shape)):
        require_within(part, dim, size)
    indices = [
        _index(builder, part) if ours else None
        for ours, part in zip(given, parts)
        if ours or not isinstance(part, (int, torch.SymInt))
    ]
    shaped = any(x.meta.ndim for x in indices if x is not None)
    if isinstance(new, Value) and not isinstance(new, Scalar) and shaped:
        require_one_dtype(owner, new)
    at = tuple(slice(None) if x is None else x for x in indices)
    found = builder.call(operator.getitem, (view, at), {})
    value = _fitted(builder, new, found.meta.ndim, owner.meta.dtype)
    # In brackets an index without dimensions is a number, and not so for the call below.
    here = _place_of_common([x for x in indices if x is None or x.meta.ndim])
    there = _place_of_common(indices)
    if shaped and here != there:
        count = found.meta.ndim - sum(x is None for x in indices)
        value = value.expand(found.meta.shape)
        value = value.movedim(list(range(here, here + count)), list(range(there, there + count)))
    # The one that takes None for the dimensions without an index.
    put = torch.ops.aten.index_put.default
    placed = builder.call(put, (view, indices, value), {})
    builder.memory.write(view, placed.expr)


def _is_number_or_slice(part: Any) -> bool:
    if isinstance(part, Value):
        meta = (part.tensor if isinstance(part, Scalar) else part).meta
        return meta.ndim == 0 and meta.dtype in _INDICES
    return isinstance(part, (int, torch.SymInt, slice))


def _place_of_common(indices: Sequence[Value | None]) -> int:
    """Before how many of the other dimensions the common ones of some indices stand."""
    places = [place for place, index in enumerate(indices) if index is not None]
    is_one_run = bool(places) and places == list(range(places[0], places[-1] + 1))
    return places[0] if is_one_run else 0


def _index(builder: Builder, part: Any) -> Value:
    if isinstance(part, Scalar):
        return part.tensor
    if isinstance(part, Value):
        return part
    kind = {} if part else {"dtype": torch.int64}  # else an empty list is one of floats
    found: Value = builder.call(torch.tensor, (part,), kind)
    return found


def _is_old_mask(part: Any) -> bool:
    return isinstance(part, Value) and part.meta.dtype == torch.uint8


def _fitted(builder: Builder, new: Any, ndim: int, dtype: torch.dtype) -> Value:
    """What is assigned, as a tensor of the dtype of where it goes and of no more dimensions."""
    if isinstance(new, Scalar):
        new = new.tensor
    if not isinstance(new, Value):
        filled: Value = builder.call(torch.full, ((), new), {"dtype": dtype})
        return filled
    extra = new.meta.ndim - ndim
    if extra > 0:  # sizes of 1 in front do not count
        new = new.reshape(new.meta.shape[extra:])
    fitted: Value = new if new.meta.dtype == dtype else new.to(dtype)
    return fitted
