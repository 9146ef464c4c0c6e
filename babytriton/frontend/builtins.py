"""What Python's own functions mean on tensors and numbers of the program."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from babytriton.frontend import effects, iteration
from babytriton.frontend.grown import Grown
from babytriton.ops import scalars
from babytriton.ops.selections.selection import Selection
from babytriton.ops.value import Scalar, Value, map_values, values_in


def kind_of(value: Value) -> type:
    """The type of Python number that ``item`` gives."""
    if value.meta.dtype == torch.bool:
        return bool
    return float if value.meta.dtype.is_floating_point else int


def _isinstance(item: Any, kinds: Any) -> bool:
    if isinstance(item, Scalar):
        return isinstance(item.sample, kinds)
    stand_in: Any = torch.empty(0) if isinstance(item, Value) else item
    stand_in = item.kind() if isinstance(item, Grown) else stand_in
    return isinstance(stand_in, kinds)


def _type(item: Any) -> type:
    if isinstance(item, Scalar):
        return item.kind
    return torch.Tensor if isinstance(item, Value) else type(item)


def _len(item: Any) -> Any:
    # Of a tensor, Python's own wants a number, and of a list that a loop has made longer.
    if isinstance(item, Grown):
        return item.length
    return item.shape[0] if isinstance(item, Value) and item.ndim else len(item)


def _sum(items: Any, start: Any = 0) -> Any:
    return functools.reduce(operator.add, items, start)


def _extreme(builtin: Callable[..., Any], better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``max`` or ``min`` of items of which some are known only at run time."""

    def choose(one: Any, other: Any) -> Any:
        values = values_in((one, other))
        if not values:
            return builtin(one, other)
        builder: Any = values[0].emitter
        kinds = [scalars.kind_of(x) for x in (one, other)]
        # As Python: the later one is taken only if it is better, so not for NaN.
        is_better = _tensor(better(other, one))
        if None in kinds:
            return builder.call(torch.where, (is_better, other, one), {})
        kind = float if float in kinds else int
        better_one, first = (scalars.convert(builder, x, kind).tensor for x in (other, one))
        taken = builder.call(torch.where, (is_better, better_one, first), {})
        return scalars.convert(builder, taken, kind)

    def extreme(*items: Any) -> Any:
        return functools.reduce(choose, items[0] if len(items) == 1 else items)

    return extreme


def _copied(item: Any) -> Any:
    """``copy.copy``: of a tensor, another one in the same memory."""
    if not isinstance(item, Value):
        return copy.copy(item)
    is_itself = isinstance(item, (Scalar, Selection))
    return item if is_itself else item.view(item.shape)


def _deeply_copied(item: Any) -> Any:
    """``copy.deepcopy``: with each tensor in memory of its own, and without its gradients."""
    return map_values(item, lambda x: x if isinstance(x, Scalar) else x.detach().clone())


def _tensor(truth: Any) -> Value:
    found: Value = truth.tensor if isinstance(truth, Scalar) else truth
    return found


ON_VALUES: dict[Any, Callable[..., Any]] = {
    **{fn: effects.text_of(fn) for fn in (str, repr, ascii, format)},
    abs: operator.abs,
    copy.copy: _copied,
    copy.deepcopy: _deeply_copied,
    isinstance: _isinstance,
    len: _len,
    max: _extreme(max, operator.gt),
    min: _extreme(min, operator.lt),
    pow: operator.pow,
    sum: _sum,
    type: _type,
}
"""Those that mean something of their own where a tensor of the program is among the arguments."""

ITERATORS: dict[Any, Callable[..., Any]] = {
    enumerate: iteration.enumerated,
    range: iteration.counted,
    reversed: iteration.flipped,
    zip: iteration.zipped,
}
"""Python's own forget how many items there are and how to reach one by its number, or want to
know the number at once."""
