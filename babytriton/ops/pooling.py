"""Pooling: averages and maxima over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax, te, tirx

from babytriton.ops import numerics
from babytriton.ops.gradients import pooling as gradients
from babytriton.ops.numerics import opmath
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import each, int64
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of


@dataclass(frozen=True)
class Window:
    """Where the windows of one dimension lie; some reach outside, into padding.

    Attributes:
        size: of the input.
        kernel: how many elements a window has at most.
        stride, padding, dilation: as torch's.
        count: of windows.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    count: int

    def at(self, place: Any, tap: Any) -> tuple[Any, list[Any]]:
        """An element's index, and the conditions under which it is an element of the input."""
        index = place * int64(self.stride) + tap * int64(self.dilation)
        last = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation - self.padding
        conditions = []
        if self.padding:
            index = index - int64(self.padding)
            conditions.append(index >= int64(0))
        if last >= self.size:
            conditions.append(index < int64(self.size))
        return index, conditions

    def length(self, place: Any, include_padding: bool) -> Any:
        """How many elements a window averages; what lies behind the padding never counts."""
        first = place * int64(self.stride) - int64(self.padding)
        end = tirx.min(first + int64(self.kernel), int64(self.size + self.padding))
        if include_padding:
            return end - first
        return tirx.min(end, int64(self.size)) - tirx.max(first, int64(0))


@dataclass(frozen=True)
class Share:
    """Where the windows of one dimension lie that share its elements out: adaptive pooling."""

    size: int
    count: int

    @property
    def kernel(self) -> int:
        """How many elements the longest window has."""
        starts = [i * self.size // self.count for i in range(self.count)]
        ends = [-(-(i + 1) * self.size // self.count) for i in range(self.count)]
        return max(end - start for start, end in zip(starts, ends))

    def at(self, place: Any, tap: Any) -> tuple[Any, list[Any]]:
        """An element's index, and the condition under which it belongs to the window."""
        if self.size % self.count == 0:
            return place * int64(self.kernel) + tap, []
        start = tirx.floordiv(place * int64(self.size), int64(self.count))
        return start + tap, [tap < self.length(place, False)]

    def length(self, place: Any, _: bool) -> Any:
        """How many elements a window has."""
        if self.size % self.count == 0:
            return int64(self.kernel)
        start = tirx.floordiv(place * int64(self.size), int64(self.count))
        above = (place + int64(1)) * int64(self.size) + int64(self.count - 1)
        return tirx.floordiv(above, int64(self.count)) - start


Windows = Sequence[Window | Share]


def reduce_windows(
    name: str,
    x: te.Tensor,
    windows: Windows,
    element: Callable[[Any, Any, Any], Any],
    outside: Any,
    reducer: Callable[..., Any],
) -> te.Tensor:
    """``element(value, index, place)`` reduced over each window of the last dimensions.

    Args:
        name: of the block.
        x: the input; dimensions before the windows' are left alone.
        windows: of the last dimensions.
        element: takes a value of the input, its indices in the windows' dimensions, and the
            index of the result.
        outside: what stands where a window reaches out of the input.
        reducer: such as ``te.sum``.
    """
    leading = x.shape[: len(x.shape) - len(windows)]
    taps = [te.reduce_axis((int64(0), int64(window.kernel)), "k") for window in windows]

    def body(*place: Any) -> Any:
        before, inside = place[: len(leading)], place[len(leading) :]
        found = [window.at(p, tap.var) for window, p, tap in zip(windows, inside, taps)]
        index = [i for i, _ in found]
        conditions = [condition for _, given in found for condition in given]
        value = element(x(*before, *index), index, place)
        if conditions:
            value = tirx.if_then_else(tirx.all(*conditions), value, outside)
        return reducer(value, axis=taps)

    return compute([*leading, *(window.count for window in windows)], body, name)


def _pooled(site: Site) -> torch.Tensor:
    """torch's result, without the indices that may come with it."""
    found: torch.Tensor = site.out[0] if isinstance(site.out, tuple) else site.out
    return found


def _shares(site: Site, input: Value, rank: int) -> list[Share]:
    sizes, counts = input.meta.shape[-rank:], _pooled(site).shape[-rank:]
    return [Share(size, count) for size, count in zip(sizes, counts)]


def _windows(
    site: Site,
    input: Value,
    rank: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
) -> list[Window]:
    kernels = each(kernel_size, rank)
    # No stride, also as an empty list: windows beside each other.
    strides = each(stride, rank) if stride or stride == 0 else kernels
    sizes, counts = input.meta.shape[-rank:], _pooled(site).shape[-rank:]
    paddings, dilations = each(padding, rank), each(dilation, rank)
    return [Window(*w) for w in zip(sizes, kernels, strides, paddings, dilations, counts)]


# ---------------------------------------------------------------- averages


def _average(
    site: Site,
    input: Value,
    windows: Windows,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    name, exact = dtype_of(opmath(site.dtype)).name, site.dtype.is_floating_point

    def fn(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, name)
        total = reduce_windows(
            "total", x, windows, lambda value, *_: value.astype(name), zero, te.sum
        )

        def mean(*place: Any) -> Any:
            inside = place[-len(windows) :]
            lengths = [w.length(p, count_include_pad) for w, p in zip(windows, inside)]
            length = math.prod(lengths, start=int64(1)) if divisor is None else int64(divisor)
            divide = tirx.div if exact else tirx.truncdiv
            return divide(total(*place), length.astype(name)).astype(dtype_of(site.dtype).name)

        return compute(site.shape, mean, "mean")

    return site.te("avg_pool", fn, input.expr)


def _avg_pool(rank: int) -> Callable[..., Any]:
    def build(
        site: Site,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if not site.dtype.is_floating_point and site.dtype != torch.int64:
            raise Unsupported("torch has no average of these integers")
        windows = _windows(site, input, rank, kernel_size, stride, padding)
        return _average(site, input, windows, count_include_pad, divisor_override)

    return build


def _adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    def build(site: Site, input: Value, output_size: Any) -> Any:
        if not site.dtype.is_floating_point:
            raise Unsupported("torch has no adaptive average of integers")
        return _average(site, input, _shares(site, input, rank))

    return build


def _lp_pool(
    average: Callable[..., Any], largest: Callable[..., Any], rank: int
) -> Callable[..., Any]:
    def decompose(
        input: Any,
        norm_type: int | float,
        kernel_size: Any,
        stride: Any = None,
        ceil_mode: bool = False,
    ) -> Any:
        if norm_type == math.inf:
            return largest(input.abs(), kernel_size, stride, 0, 1, ceil_mode)
        if norm_type == -math.inf:
            return -largest(-input.abs(), kernel_size, stride, 0, 1, ceil_mode)
        total = average(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
        length = math.prod(each(kernel_size, rank))
        return (torch.sign(total) * torch.relu(total.abs()) * length).pow(1.0 / norm_type)

    return decompose


# ---------------------------------------------------------------- maxima


def _maximum(site: Site, input: Value, windows: Windows) -> Any:
    """The largest value of each window, NaN if it has one; padding never wins."""
    name = dtype_of(input.meta.dtype).name

    def fn(x: te.Tensor) -> te.Tensor:
        found = _largest(x, windows, signed_zeros=True)
        return compute(
            site.shape, lambda *place: numerics.from_order_key(found(*place), name), "max"
        )

    return site.te("max_pool", fn, input.expr)


def _largest(x: te.Tensor, windows: Windows, *, signed_zeros: bool) -> te.Tensor:
    """The order key of the largest value of each window."""
    first = x(*(int64(0) for _ in x.shape))
    least = tirx.min_value(str(numerics.order_key(first).ty.dtype))

    def key(value: Any, *_: Any) -> Any:
        return numerics.order_key(value, signed_zeros=signed_zeros)

    return reduce_windows("largest", x, windows, key, least, te.max)


def _maximum_and_index(site: Site, input: Value, windows: Windows) -> Any:
    """The largest value of each window, and its place in the input with its dimensions as one.

    torch goes on to whatever is larger than what it has, or NaN: so it is the first of equals,
    but the last of several NaN.
    """
    name = dtype_of(input.meta.dtype).name
    shape = _pooled(site).shape
    total = math.prod(window.size for window in windows)

    def fn(x: te.Tensor) -> list[te.Tensor]:
        largest = _largest(x, windows, signed_zeros=False)

        def place_if_largest(value: Any, index: Sequence[Any], place: Any) -> Any:
            position: Any = int64(0)
            for window, i in zip(windows, index):
                position = position * int64(window.size) + i
            if numerics.is_float(value):
                # The least is sought, so the places of NaN are counted from the end.
                backwards = int64(total - 1) - position
                position = tirx.Select(numerics.isnan(value), backwards, position)
            is_largest = tirx.EQ(numerics.order_key(value, signed_zeros=False), largest(*place))
            return tirx.Select(is_largest, position, int64(total))

        found = reduce_windows("place", x, windows, place_if_largest, int64(total), te.min)

        def value(*place: Any) -> Any:
            return numerics.from_order_key(largest(*place), name)

        def index(*place: Any) -> Any:
            if not input.meta.dtype.is_floating_point:
                return found(*place)
            forwards = int64(total - 1) - found(*place)
            return tirx.Select(numerics.isnan(value(*place)), forwards, found(*place))

        return [compute(shape, value, "max"), compute(shape, index, "index")]

    both = site.te("max_pool_with_indices", fn, input.expr)
    return [site.emit(relax.TupleGetItem(both, i)) for i in range(2)]


def _max(site: Site, input: Value, windows: Windows) -> Any:
    build = _maximum_and_index if isinstance(site.out, tuple) else _maximum
    return build(site, input, windows)


def _max_pool(rank: int) -> Callable[..., Any]:
    def build(
        site: Site,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if input.meta.dtype == torch.bool:
            raise Unsupported("torch has no maximum of bools in windows")
        windows = _windows(site, input, rank, kernel_size, stride, padding, dilation)
        return _max(site, input, windows)

    return build


def _adaptive_max_pool(rank: int) -> Callable[..., Any]:
    def build(site: Site, input: Value, output_size: Any, return_indices: bool = False) -> Any:
        if not input.meta.dtype.is_floating_point:
            raise Unsupported("torch has no adaptive maximum of integers")
        return _max(site, input, _shares(site, input, rank))

    return build


def _calls(name: str) -> tuple[Callable[..., Any], ...]:
    """What torch has of a name, which is not always in both places."""
    found = [getattr(home, name) for home in (F, torch) if hasattr(home, name)]
    return tuple(dict.fromkeys(found))


def _rows(rank: int) -> list[Op]:
    average, shared = f"avg_pool{rank}d", f"adaptive_avg_pool{rank}d"
    largest, shared_largest = f"max_pool{rank}d", f"adaptive_max_pool{rank}d"
    [found, *_] = _calls(f"{largest}_with_indices")
    [shared_found, *_] = _calls(f"{shared_largest}_with_indices")
    powers = _lp_pool(getattr(F, average), getattr(F, largest), rank)
    return [
        Op(average, _calls(average), _avg_pool(rank), gradient=gradients.avg_pool(rank)),
        Op(
            shared,
            _calls(shared),
            _adaptive_avg_pool(rank),
            gradient=gradients.adaptive_avg_pool(rank),
        ),
        Op(largest, _calls(largest), _max_pool(rank), derive=gradients.largest_of(found)),
        Op(
            found.__name__,
            _calls(found.__name__),
            _max_pool(rank),
            gradient=gradients.max_pool(rank),
        ),
        Op(
            shared_largest,
            _calls(shared_largest),
            _adaptive_max_pool(rank),
            derive=gradients.largest_of_shares(shared_found),
        ),
        Op(
            shared_found.__name__,
            _calls(shared_found.__name__),
            _adaptive_max_pool(rank),
            gradient=gradients.adaptive_max_pool(rank),
        ),
        Op(f"lp_pool{rank}d", _calls(f"lp_pool{rank}d"), decompose=powers),
    ]


ROWS: tuple[Op, ...] = (*_rows(1), *_rows(2), *_rows(3))
