"""torch on meta tensors: the type checker. What it says of a call is the type of its result."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from babytriton.ops.refusals import IllTyped, UnsupportedDtype, WrongDevice
from babytriton.ops.table import Callee
from babytriton.ops.value import DataDependent, NeedsConstant, Scalar, Value, map_values
from babytriton.types import find_dtype


def typed(device: torch.device, fn: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own result for a call, with meta tensors for the tensors.

    Args:
        device: the program's, which is the one a call may name.
        fn: a function, or a method or property of ``torch.Tensor``.
        args: values and Python objects.
        kwargs: likewise.

    Raises:
        IllTyped: torch refuses the arguments.
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
        with torch.no_grad(), torch.device("meta"):
            result = apply(_TYPED_BY.get(fn, fn), args, kwargs)
    except (DataDependent, NeedsConstant, WrongDevice):
        raise
    except Exception as error:
        raise IllTyped(str(error).strip()) from error
    for meta in tensors_of(result):
        if find_dtype(meta.dtype) is None or meta.layout is not torch.strided:
            raise UnsupportedDtype(str(meta.dtype).removeprefix("torch."))
    return result


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


_TYPED_BY: dict[Callee, Callee] = {torch.nn.functional.gaussian_nll_loss: _gaussian_nll_type}
"""What gives the type of a call where the callable itself reads numbers out of its tensors."""
