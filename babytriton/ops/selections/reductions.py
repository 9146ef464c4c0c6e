"""Reductions and losses of what masks select: what is not selected is filled, or not counted."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from babytriton.ops.loss_reduction import reduction_of
from babytriton.ops.meta import tensors_of, typed
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import IllTyped
from babytriton.ops.selections.calls import Call, along_others, elementwise, guarded
from babytriton.ops.selections.selection import Selection, where
from babytriton.ops.sizes import is_one
from babytriton.ops.value import Value, map_values, values_in

_Fill = Callable[[torch.dtype], Any]


def _number(number: Any) -> _Fill:
    return lambda dtype: number


def _least(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


REDUCING: Mapping[str, _Fill] = {
    "sum": _number(0),
    "nansum": _number(0),
    "prod": _number(1),
    "count_nonzero": _number(0),
    "any": _number(False),
    "all": _number(True),
    "amax": _least,
    "max": _least,
    "amin": _greatest,
    "min": _greatest,
    "logsumexp": _least,
    "norm": _number(0),
    "linalg.vector_norm": _number(0),
    "nanmean": _number(math.nan),
    "nanmedian": _number(math.nan),
}
"""What stands for elements that are not selected in reductions, and does not change them."""

KEEPING: Mapping[str, _Fill] = {
    "softmax": _least,
    "log_softmax": _least,
    "softmin": _greatest,
    "cumsum": _number(0),
    "cumprod": _number(1),
    "logcumsumexp": _least,
}
"""The same for what gives as many elements again."""

_OF_FLOATS = frozenset(("nanmean", "nanmedian"))
"""Reductions that NaN does not change."""

_OF_NONE = frozenset(("amax", "max", "amin", "min"))
"""Reductions that torch refuses of no elements."""

_DIM: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys((*REDUCING, *KEEPING, "mean", "var", "std", "var_mean", "std_mean"), (1, None)),
    **dict.fromkeys(("norm", "linalg.vector_norm"), (2, None)),
}
"""Where the dimension stands among the arguments, and which one it is by default."""

LOOKING: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(("normalize", "cosine_similarity"), (2, 1)),
    **dict.fromkeys(("glu", "sort", "argsort"), (1, -1)),
    **dict.fromkeys(("topk", "diff", "kthvalue"), (2, -1)),
    **dict.fromkeys(("argmax", "argmin", "median", "nanmedian", "cummax", "cummin"), (1, None)),
    **dict.fromkeys(("gather", "flip", "aminmax"), (1, None)),
    "roll": (2, None),
}
"""The same for functions that must look along other dimensions than those that masks select."""


def reducing(call: Call) -> Any:
    """A reduction that some number does not change: of all elements, others filled with it."""
    if call.name in ("max", "min") and isinstance(call.argument(1, "other"), Value):
        return elementwise(call)
    call, dims = _looking_along(call)
    if dims is not None and call.first.axis not in dims:
        return along_others(call)
    if call.name in _OF_FLOATS and not call.first.meta.dtype.is_floating_point:
        raise call.refuse()
    is_largest = "norm" in call.name and _norm_of(call) == math.inf
    found = _of_filled(call, REDUCING[call.name])
    if call.name not in _OF_NONE and not is_largest:
        return found
    if not isinstance(found, Value):  # indices count what is selected
        raise call.refuse()
    # Where torch raises, as a kernel cannot: NaN, and 0 for integers.
    kind = found.meta.dtype
    missing = math.nan if kind.is_floating_point else False if kind == torch.bool else 0
    selected: Any = call.first.selected
    return where(selected > 0, found, missing)


def _of_filled(call: Call, fill: _Fill) -> Any:
    """The call of all elements, with a number in place of those that are not selected."""
    [dtype] = {meta.dtype for meta in tensors_of(_type_of_whole(call))[:1]}

    def filled(selection: Selection) -> Value:
        if dtype.is_floating_point and not selection.meta.dtype.is_floating_point:
            selection = selection.of(selection.whole.to(dtype))
        return selection.filled(fill(selection.meta.dtype))

    return call.on_wholes(filled)


def _looking_along(call: Call) -> tuple[Call, tuple[int, ...] | None]:
    """The call, of flat selections where it names dimensions, and these."""
    dims = call.along(_DIM[call.name])
    is_whole = dims is None and not call.argument(2, "keepdim", False)
    return (call if is_whole else call.flat), dims


def _norm_of(call: Call) -> float:
    """The power of a norm, which must be one that zeros do not change, and none of matrices."""
    p = call.argument(1, "p" if call.name == "norm" else "ord", 2)
    if p in (None, "fro"):
        return 2
    if not isinstance(p, (int, float)) or p < 0:
        raise call.refuse()
    return p


def keeping(call: Call) -> Any:
    """A function along a dimension that some number does not change for the others."""
    call = call.flat
    dims = call.along(_DIM[call.name])
    if dims is None:
        raise call.refuse()
    if call.first.axis not in dims:
        return along_others(call)
    found = call.first.of(_of_filled(call, KEEPING[call.name]))
    # On the way back all of them are summed up: what is not selected must give no infinities.
    return found.refilled if call.builder.tape.depends((found.whole,)) else found


def looking(call: Call) -> Any:
    """A function along one dimension, which must be another than what masks select."""
    call = call.flat
    first = call.first
    dims = call.along(LOOKING[call.name])
    others = [x for x in values_in((call.args, call.kwargs)) if not isinstance(x, Selection)]
    places = [x.meta.ndim - (first.ndim - first.axis) for x in others]
    fit = all(place < 0 or is_one(x.meta.shape[place]) for x, place in zip(others, places))
    if dims is None or first.axis in dims or not fit:
        raise call.refuse()
    return guarded(call)


def mean(call: Call) -> Any:
    """The mean, of as many elements as are selected."""
    call, dims = _looking_along(call)
    if dims is not None and call.first.axis not in dims:
        return along_others(call)
    dtype = _type_of_whole(call).dtype
    wide = opmath(dtype)
    total: Any = torch.sum(call.first.filled(0).to(wide), **_kept(call, dims))
    found = total / _number_of(call, dims, wide)
    return found.to(dtype)


def _kept(call: Call, dims: tuple[int, ...] | None) -> dict[str, Any]:
    """The dimensions that a reduction looks along, and whether it keeps them, as keywords."""
    keeps = bool(call.argument(2, "keepdim", False))
    if dims is None and not keeps:
        return {}
    return {"dim": list(range(call.first.ndim) if dims is None else dims), "keepdim": keeps}


def _number_of(call: Call, dims: tuple[int, ...] | None, dtype: torch.dtype) -> Value:
    """How many elements are reduced to one, as a float."""
    by = call.first
    others = by.others
    if dims is not None:
        others = math.prod(by.whole.meta.shape[d] for d in dims if d != by.axis)
    selected: Value = by.selected.to(dtype)
    found: Value = selected * others
    return selected if type(others) is int and others == 1 else found


def _type_of_whole(call: Call) -> Any:
    """torch's result for the tensors that are selected from, with meta tensors."""
    args, kwargs = map_values(
        (call.args, call.kwargs), lambda x: x.whole if isinstance(x, Selection) else x
    )
    return typed(call.builder.device, call.builder.symbols, call.fn, args, kwargs)


def moments(call: Call) -> Any:
    """The variance or the standard deviation, and with them the mean."""
    args = list(call.args[1:])
    kwargs = dict(call.kwargs)
    if args and isinstance(args[0], bool):
        kwargs["unbiased"] = args.pop(0)
    for name, value in zip(("dim", "unbiased", "keepdim"), args):
        kwargs[name] = value
    unbiased = kwargs.pop("unbiased", None)
    correction = kwargs.pop("correction", None)
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    kwargs["correction"] = correction
    call, dims = _looking_along(replace(call, args=call.args[:1], kwargs=kwargs))
    if dims is not None and call.first.axis not in dims:
        return along_others(call)
    if not call.first.meta.dtype.is_floating_point:
        raise IllTyped("std and var only support floating point and complex dtypes")
    types = _type_of_whole(call)
    dtype = (types[0] if isinstance(types, tuple) else types).dtype
    wide = opmath(dtype)
    by, number = call.first, _number_of(call, dims, wide)
    along = list(range(by.whole.meta.ndim)) if dims is None else list(dims)
    total: Any = torch.sum(by.filled(0).to(wide), along, keepdim=True)
    center = total / number
    offset: Any = where(by.spread, by.whole.to(wide) - center, 0)
    squares: Any = torch.sum(offset * offset, **_kept(call, dims))
    found: Any = squares / torch.clamp(number - correction, min=0)
    found = (_root(found) if call.name.startswith("std") else found).to(dtype)
    if not call.name.endswith("_mean"):
        return found
    return found, center.reshape(found.meta.shape).to(dtype)


def _root(square: Any) -> Any:
    """The square root, of whose gradient torch says that it is 0 at 0."""
    is_zero = square == 0
    of_others: Any = where(is_zero, 1.0, square)
    return where(is_zero, 0.0, torch.sqrt(of_others))


def loss(call: Call) -> Any:
    """A loss of each element, and then what is made of these."""
    given = inspect.signature(call.fn).bind(*call.args, **call.kwargs)
    how = {name: given.arguments.pop(name, None) for name in ("size_average", "reduce")}
    reduction = reduction_of(how["size_average"], how["reduce"], _reduction(call, given))
    each = elementwise(replace(call, args=given.args, kwargs=given.kwargs | {"reduction": "none"}))
    return _reduced(call, each, reduction, given.arguments)


def _reduction(call: Call, given: inspect.BoundArguments) -> str:
    default = inspect.signature(call.fn).parameters["reduction"].default
    return str(given.arguments.pop("reduction", default))


def _reduced(call: Call, each: Any, reduction: str, given: Mapping[str, Any]) -> Any:
    if reduction == "none":
        return each
    if reduction == "mean":
        if call.name in _WEIGHTED and given.get("weight") is not None:
            raise call.refuse()
        return each.mean()
    return each.sum() / each.shape[0] if reduction == "batchmean" else each.sum()


_WEIGHTED = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
"""Losses whose mean is by the sum of the weights."""


def classification(call: Call) -> Any:
    """Cross entropy of rows that are selected: the others' classes are the one that is ignored."""
    call = call.flat
    given = inspect.signature(call.fn).bind(*call.args, **call.kwargs)
    given.apply_defaults()
    arguments = given.arguments
    input, target = arguments["input"], arguments["target"]
    if not all(isinstance(x, Selection) and x.axis == 0 for x in (input, target)):
        raise call.refuse()
    names = ("size_average", "reduce", "reduction")
    reduction = reduction_of(*(arguments[name] for name in names))
    arguments |= dict.fromkeys(names[:2])
    of_classes = not target.meta.dtype.is_floating_point
    arguments["input"] = input.whole
    arguments["target"] = target.filled(arguments["ignore_index"]) if of_classes else target.whole
    arguments["reduction"] = reduction if of_classes else "none"
    found = call.builder.call(call.fn, given.args, given.kwargs)
    if of_classes and reduction != "none":
        return found
    each = call.selected(found, 0)
    if reduction == "none":
        return each
    return each.mean() if reduction == "mean" else each.sum()
