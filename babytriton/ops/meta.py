"""torch on meta tensors: the type checker. What it says of a call is the type of its result."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from babytriton.ops import deferred
from babytriton.ops.refusals import (
    IllTyped,
    NeedsData,
    Unsupported,
    UnsupportedDtype,
    WrongDevice,
)
from babytriton.ops.sizes import SYMBOLIC, symbolic_in
from babytriton.ops.table import Callee
from babytriton.ops.trees import leaves_in, map_leaves
from babytriton.ops.value import DataDependent, NeedsConstant, Scalar, Value, map_values
from babytriton.types import Dim, TensorType, find_dtype

if TYPE_CHECKING:
    from babytriton.ops.symbols import Symbols


def meta_of(type: TensorType, symbols: Symbols | None) -> torch.Tensor:
    """A contiguous tensor of a type that has no storage."""
    with _typing(symbols):
        return torch.empty(shape_of(type, symbols), dtype=type.dtype, device="meta")


def shape_of(type: TensorType, symbols: Symbols | None) -> tuple[Any, ...]:
    """A type's shape, with symbolic sizes of torch's for those known only at the call."""
    if symbols is None:
        return type.shape
    return tuple(symbols.size(n) if isinstance(n, Dim) else n for n in type.shape)


def _typing(symbols: Symbols | None) -> AbstractContextManager[Any]:
    # Plain meta tensors are quicker, and do not know symbolic sizes.
    return nullcontext() if symbols is None else symbols.typing()


def typed(
    device: torch.device,
    symbols: Symbols | None,
    fn: Callee,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """torch's own result for a call, with meta tensors for the tensors.

    Args:
        device: the program's, which is the one a call may name.
        symbols: the program's symbolic sizes, if it has any.
        fn: a function, or a method or property of ``torch.Tensor``.
        args: values and Python objects.
        kwargs: likewise.

    Raises:
        IllTyped: torch refuses the arguments.
        NeedsData: torch would have to read a tensor.
        UnsupportedDtype: the result is a tensor that kernels cannot hold.
        WrongDevice: the call names another device.
    """
    at = _NUMBERED.get(fn)
    if at is not None:
        args = (*args[:at], *(_numbered(arg) for arg in args[at : at + 1]), *args[at + 1 :])
    args, kwargs = map_values((args, kwargs), _as_meta)
    large = next((x for x in args if type(x) is int and not -(2**63) <= x < 2**63), None)
    if large is not None:
        raise IllTyped(f"{large} does not fit an int64")
    try:
        if "device" in kwargs:
            _check_device(device, kwargs["device"])
            kwargs = kwargs | {"device": "meta"}
        args = tuple(_as_meta_device(device, fn, arg) for arg in args)
        with deferred.unneeded(), torch.no_grad(), _typing(symbols), torch.device("meta"):
            result = apply(_TYPED_BY.get(fn, fn), args, kwargs)
    except (DataDependent, NeedsConstant, Unsupported, WrongDevice):
        raise
    except Exception as error:
        why = str(error).strip()
        if symbols is not None:
            _require_sampled(symbols, fn, args, kwargs)
            why = symbols.named(why)
        if type(error).__name__ in _READS_DATA or any(text in why for text in _NEEDS_DATA):
            raise NeedsData(why) from error
        raise IllTyped(why) from error
    for meta in tensors_of(result):
        if find_dtype(meta.dtype) is None or meta.layout is not torch.strided:
            raise UnsupportedDtype(str(meta.dtype).removeprefix("torch."))
    return result


def ask_torch(fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Ask torch's own kernels, where all tensors are of integers: meta tensors are of any dtype.

    Args:
        fn: a function, or a method or property of ``torch.Tensor``.
        args: values and Python objects.
        kwargs: likewise.

    Raises:
        IllTyped: torch has the function for floats alone.
    """
    values = leaves_in((args, kwargs), Value)
    floats = any(value.meta.is_floating_point() for value in values)
    if floats or not values or symbolic_in((args, kwargs)):
        return
    if math.prod(max(n, 1) for n in leaves_in((args, kwargs), int)) > _MUCH:
        return  # they may be sizes

    def small(value: Value) -> Any:
        shape = [n if isinstance(n, int) and n < 2 else 2 for n in value.meta.shape]
        return torch.ones(shape, dtype=value.meta.dtype, device="cpu")

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            apply(fn, *map_values((args, kwargs), small))
    except Exception as error:  # others are of the small shapes
        if any(text in str(error) for text in _FLOATS_ALONE):
            raise IllTyped(str(error)) from error


_MUCH = 1 << 20
"""Elements that are not made only to be asked about."""

_FLOATS_ALONE = (
    "not implemented for '",
    "only support floating point",
    "Boolean inputs not supported",
    "does not support bool",
    "with a bool tensor is not supported",
    "Integer division with",
    "expected m1 and m2 to have the same dtype",  # attention scores are floats
)


def _require_sampled(
    symbols: Symbols, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Make constants of a call's sizes if torch takes the call for the sizes it knows.

    Raises:
        Related: it does; some of its functions do not know symbolic sizes.
    """

    def sampled(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return symbols.sample(item)
        shape = map_leaves(tuple(item.shape), SYMBOLIC, symbols.sample)
        return torch.empty(shape, dtype=item.dtype, device="meta")

    plain = map_leaves((args, kwargs), (torch.Tensor, *SYMBOLIC), sampled)
    try:
        with torch.no_grad(), torch.device("meta"):
            apply(_TYPED_BY.get(fn, fn), *plain)
    except Exception:
        return
    shapes = [tuple(tensor.shape) for tensor in leaves_in((args, kwargs), torch.Tensor)]
    for number in symbolic_in((args, kwargs, shapes)):
        symbols.fix(number)
    symbols.require_unrelated()


_READS_DATA = ("DataDependentOutputException", "DynamicOutputShapeException")
"""What fake tensors raise where plain meta tensors have one of the messages below."""

_NEEDS_DATA = (
    "cannot be called on meta tensors",
    "data dependent",
    "data-dependent",
    "Cannot copy out of meta tensor",
    "can't convert meta device type tensor",
    "aten::nonzero",
    "torch.nonzero()",
    "no fake impl or Meta kernel",
    "cannot repeat_interleave a meta tensor",
    "aten::_local_scalar_dense",
    "aten::equal",
)


def is_at_unknown_place(fn: Callee, args: tuple[Any, ...]) -> bool:
    """Whether a call gives a view of its first argument at a place that is known at run time."""
    at = _NUMBERED.get(fn)
    if at is None or len(args) <= at:
        return False
    parts = args[at] if isinstance(args[at], tuple) else (args[at],)
    numbers = [isinstance(part, Value) and _numbered(part) is not part for part in parts]
    tensors = [isinstance(part, (Value, list)) for part in parts]
    # Where a tensor of several indices stands among them, the result is no view.
    return any(numbers) and numbers.count(True) == tensors.count(True)


def apply(fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function or method, or read a property."""
    # Properties such as Tensor.T are descriptors, not callables.
    return fn(*args, **kwargs) if callable(fn) else fn.__get__(*args)


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in tensors_of(item)]
    return []


def replace_tensors(result: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """The same result with ``fn`` applied to each tensor."""
    if isinstance(result, torch.Tensor):
        return fn(result)
    if isinstance(result, list):
        return [replace_tensors(item, fn) for item in result]
    if isinstance(result, tuple):
        items = [replace_tensors(item, fn) for item in result]
        return tuple(items) if type(result) is tuple else type(result)(items)
    return result


def _check_device(ours: torch.device, device: Any) -> None:
    if device is not None and torch.device(device).type != ours.type:
        raise WrongDevice(str(device))


def _as_meta_device(device: torch.device, fn: Callee, argument: Any) -> Any:
    named = isinstance(argument, str) and fn is torch.Tensor.to
    if named or isinstance(argument, torch.device):
        _check_device(device, argument)
        return torch.device("meta")
    return argument


_NUMBERED: dict[Callee, int] = {
    operator.getitem: 1,
    torch.Tensor.__getitem__: 1,
    torch.select: 2,
    torch.Tensor.select: 2,
    torch.narrow: 2,
    torch.Tensor.narrow: 2,
}
"""Which argument may be an index without dimensions, whose value torch reads at once."""


def _numbered(index: Any) -> Any:
    """Any number in place of such an index: the type of the result does not depend on it."""
    if isinstance(index, tuple):
        return tuple(_numbered(part) for part in index)
    if not isinstance(index, Value) or index.meta.ndim or index.meta.dtype.is_floating_point:
        return index
    return index if index.meta.dtype in (torch.bool, torch.uint8) else 0


def _as_meta(value: Value) -> Any:
    return value.sample if isinstance(value, Scalar) else value.meta


def _gaussian_nll_type(input: Any, target: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
    """The loss for a variance that is a number: of a tensor's, torch asks if one is negative."""
    if isinstance(var, torch.Tensor):
        input = input.to(torch.promote_types(input.dtype, var.dtype))
        var = 1.0
    return torch.nn.functional.gaussian_nll_loss(input, target, var, *args, **kwargs)


def _type_type(input: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A cast to a class of tensors, or to one by name: a meta tensor has no numbers for these."""
    if dtype is None:
        raise TypeError("the name of a tensor's class is not known here: ask for dtype and device")
    named = getattr(torch, dtype.rpartition(".")[2], None) if isinstance(dtype, str) else dtype
    if named is None:
        raise ValueError(f"invalid type: {dtype!r}")
    return input.to(getattr(named, "dtype", named))


def _normal_type(mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of numbers torch.normal makes its tensor on the CPU where nothing else is said."""
    if not isinstance(mean, torch.Tensor) and not isinstance(std, torch.Tensor):
        kwargs["device"] = "meta"
    return torch.normal(mean, std, *args, **kwargs)


_TYPED_BY: dict[Callee, Callee] = {
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll_type,
    torch.normal: _normal_type,
    torch.Tensor.type: _type_type,
}
"""What gives the type of a call where the callable itself reads numbers, or draws them."""
