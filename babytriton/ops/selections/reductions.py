"""Reductions and losses of what masks select: what is not selected is filled, or not counted."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from babytriton.ops.loss_reduction import reduction_of
from babytriton.ops.meta import typed
from babytriton.ops.numerics import opmath
from babytriton.ops.selections.calls import Call, along_others, elementwise
from babytriton.ops.selections.selection import Selection, where
from babytriton.ops.value import Value, map_values

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

_OF_NONE = frozenset(("amax", "max", "amin", "min"))
"""Reductions that torch refuses of no elements."""

_DIM: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(REDUCING, (1, None)),
    **dict.fromkeys(("mean", "var", "std", "var_mean", "std_mean"), (1, None)),
    **dict.fromkeys(("norm", "linalg.vector_norm"), (2, None)),
    **dict.fromkeys(KEEPING, (1, None)),
    "normalize": (2, 1),
    "cosine_similarity": (2, 1),
    "glu": (1, -1),
    "gather": (1, None),
}
"""Where the dimension stands among the arguments, and which one it is by default."""


def dims_of(call: Call) -> tuple[int, ...] | None:
    """The dimensions that a call looks along, of a selection; ``None`` for all of them."""
    dim = call.argument(_DIM[call.name][0], "dim", _DIM[call.name][1])
    if dim is None or isinstance(dim, (bool, Value)) or dim in ((), []):
        return None
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    ndim = call.first.ndim
    if not all(type(d) is int and -ndim <= d < ndim for d in dims):
        return None  # torch says so
    return tuple(d % ndim for d in dims)


def reducing(call: Call) -> Any:
    """A reduction that some number does not change: of all elements, others filled with it."""
    if call.name in ("max", "min") and isinstance(call.argument(1, "other"), Value):
        return elementwise(call)
    call, dims = _looking_along(call)
    if dims is not None and call.first.axis not in dims:
        return along_others(call)
    if "norm" in call.name:
        _require_sum(call)
    fill = REDUCING[call.name]
    found = call.on_wholes(lambda x: x.filled(fill(x.whole.meta.dtype)))
    if call.name not in _OF_NONE:
        return found
    if not isinstance(found, Value):  # indices count what is selected
        raise call.refuse()
    # Where torch raises, as a kernel cannot: NaN, and 0 for integers.
    missing = math.nan if found.meta.dtype.is_floating_point else 0
    selected: Any = call.first.selected
    return where(selected > 0, found, missing)


def _looking_along(call: Call) -> tuple[Call, tuple[int, ...] | None]:
    """The call, of flat selections where it names dimensions, and these."""
    dims = dims_of(call)
    is_whole = dims is None and not call.argument(2, "keepdim", False)
    return (call if is_whole else call.flat), dims


def _require_sum(call: Call) -> None:
    """Refuse norms that zeros would change, and those of matrices."""
    p = call.argument(1, "p" if call.name == "norm" else "ord", 2)
    if p not in (None, "fro", 2) and not (isinstance(p, (int, float)) and p >= 0):
        raise call.refuse()


def keeping(call: Call) -> Any:
    """A function along a dimension that some number does not change for the others."""
    call = call.flat
    dims = dims_of(call)
    if dims is None:
        raise call.refuse()
    if call.first.axis not in dims:
        return along_others(call)
    fill = KEEPING[call.name]
    found = call.on_wholes(lambda x: x.filled(fill(x.whole.meta.dtype)))
    return call.selected(found, call.first.axis)


def looking(call: Call) -> Any:
    """A function along one dimension, which must be another than what masks select."""
    call = call.flat
    dims = dims_of(call)
    if dims is None or call.first.axis in dims:
        raise call.refuse()
    return along_others(call)


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
    if dims is None:
        return {}
    return {"dim": list(dims), "keepdim": bool(call.argument(2, "keepdim", False))}


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
    found = (torch.sqrt(found) if call.name.startswith("std") else found).to(dtype)
    if not call.name.endswith("_mean"):
        return found
    return found, center.reshape(found.meta.shape).to(dtype)


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
    total = each.sum()
    return total / call.first.count if reduction == "mean" else total
