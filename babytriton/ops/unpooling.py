"""The way back of maxima over windows."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from babytriton.ops.gradients.pooling import Window, of_unpooled, unpooled
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

_FEW = 9
"""Windows that a place lies in which it asks one by one, and not in a loop."""


def _unpooled(
    site: Site,
    grad: Value,
    index: Value,
    sizes: Sequence[int],
    windows: Sequence[Window],
) -> Any:
    """Each place asks the windows that it lies in whether they found their value there."""
    rank, counts = len(sizes), grad.meta.shape[-len(sizes) :]
    overlaps = [dilation * (kernel - 1) // stride + 1 for kernel, stride, _, dilation in windows]
    zero = tirx.const(0, dtype_of(site.dtype).name)

    def value(tensors: Sequence[Any], place: Sequence[Any], before: Sequence[Any]) -> Any:
        given, found = tensors
        here: Any = int64(0)
        for n, i in zip(sizes, place[-rank:]):
            here = here * int64(n) + i
        at, exists = [], []
        for i, b, count, window in zip(place[-rank:], before, counts, windows):
            _, stride, padding, _ = window
            one = tirx.floordiv(i + int64(padding), int64(stride)) - b
            at.append(one)
            exists += [one >= 0, one < count]
        place = [*place[:-rank], *at]
        read = tirx.Select(tirx.EQ(found(*place), here), given(*place), zero)
        # if_then_else, as there is nothing to read where there is no window.
        return tirx.if_then_else(tirx.all(*exists), read, zero)

    if math.prod(overlaps) <= _FEW:

        def total(tensors: Sequence[Any], *place: Any) -> Any:
            every = itertools.product(*map(range, overlaps))
            terms = [value(tensors, place, [int64(b) for b in before]) for before in every]
            return functools.reduce(operator.add, terms)

        return site.gather("unpool", site.shape, total, grad.expr, index.expr)

    def fn(*tensors: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((int64(0), int64(n)), "b") for n in overlaps]
        before = [axis.var for axis in axes]
        return compute(
            site.shape, lambda *place: te.sum(value(tensors, place, before), axis=axes), "unpool"
        )

    return site.te("unpool", fn, grad.expr, index.expr)


PARTS: tuple[Op, ...] = (Op("unpooled", (unpooled,), _unpooled, gradient=of_unpooled),)
