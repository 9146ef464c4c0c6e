"""Products and norms of rows that masks select, and what else treats each row alike."""

from __future__ import annotations

from typing import Any

from babytriton.ops.selections.calls import Call, guarded
from babytriton.ops.selections.selection import Selection
from babytriton.ops.value import values_in


def each_row(call: Call) -> Any:
    """A function of each row along the last dimension, or of less."""
    call = call.flat
    first = call.first
    rows = call.name in ("linear", "prelu") and not _is_one(call.args[1:])
    if rows and (first.axis or first.ndim < 2):
        raise call.refuse()
    return guarded(call)


def _is_one(weights: tuple[Any, ...]) -> bool:
    return all(x.meta.numel() == 1 for x in values_in(weights))


def normalized(call: Call) -> Any:
    """A norm over the last dimensions."""
    call = call.flat
    shape = call.argument(1, "normalized_shape")
    count = len(shape) if isinstance(shape, (tuple, list)) else 1
    if call.first.axis >= call.first.ndim - count:
        raise call.refuse()
    return guarded(call)


def product(call: Call) -> Any:
    """A matrix product: of rows or columns that are selected, or over them."""
    call = call.flat
    left, right = call.argument(0, "input"), call.argument(1, "other")
    inner = (left, left.ndim - 1), (right, max(right.ndim - 2, 0))
    summed = [isinstance(x, Selection) and x.axis == dim for x, dim in inner]
    if max(left.ndim, right.ndim) > 2 or any(summed) != all(summed):
        raise call.refuse()
    if all(summed):
        return call.on_wholes(lambda x: x.filled(0))
    if len(call.selections) > 1:
        raise call.refuse()
    return guarded(call)
