"""Convolutions, and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import relax, te, tirx

from babytriton.ops.choice import keep_convolution
from babytriton.ops.contraction import require_one_number_dtype
from babytriton.ops.gradients import convolution as gradients
from babytriton.ops.numerics import opmath
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import each, int64
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

CONVOLVE = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def batched(site: Site, x: Value, rank: int) -> relax.Expr:
    """The input with a batch dimension, which torch lets the user leave out."""
    if x.meta.ndim == rank + 2:
        return x.expr
    return site.emit(relax.op.expand_dims(x.expr, 0))


def _finish(site: Site, result: relax.Expr, bias: Value | None, rank: int) -> relax.Expr:
    """The bias added, one rounding, and no batch dimension if the input had none."""
    if bias is not None:
        # Not as a reshaped tensor and a sum: the reshape would be a kernel.
        shape = [int(n) for n in result.ty.shape]

        def with_bias(tensors: Any, n: Any, o: Any, *place: Any) -> Any:
            total, added = tensors
            return total(n, o, *place) + added(o).astype(total.dtype)

        result = site.compute("bias", shape, with_bias, result, bias.expr)
    result = site.cast(result, site.dtype)
    batch_left_out = len(site.shape) == rank + 1
    return relax.op.reshape(result, site.shape) if batch_left_out else result


def _convolution(rank: int) -> Callable[..., Any]:
    def build(
        site: Site,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Any:
        dtype = opmath(require_one_number_dtype(input, weight, bias))
        keep_convolution(site, input, weight)
        steps, apart = each(stride, rank), each(dilation, rank)
        if padding == "same":
            around = [d * (k - 1) for d, k in zip(apart, weight.meta.shape[2:])]
            # An odd total goes behind, as in torch.
            sides = [n // 2 for n in around] + [n - n // 2 for n in around]
        else:
            sides = 2 * each(0 if padding == "valid" else padding, rank)
        result = CONVOLVE[rank](
            batched(site, input, rank),
            weight.expr,
            strides=tuple(steps),
            padding=tuple(sides),
            dilation=tuple(apart),
            groups=groups,
            out_dtype=dtype_of(dtype).name,
        )
        return _finish(site, site.emit(result), bias, rank)

    return build


def _transposed(rank: int) -> Callable[..., Any]:
    def build(
        site: Site,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Any:
        """``output_padding`` only makes the result larger, so its shape tells all of it."""
        dtype = opmath(require_one_number_dtype(input, weight, bias))
        keep_convolution(site, input, weight)
        sizes = site.shape[-rank:]
        windows = [
            _Taps(*dimension)
            for dimension in zip(
                [int(n) for n in input.meta.shape[-rank:]],
                [int(n) for n in weight.meta.shape[2:]],
                each(stride, rank),
                each(padding, rank),
                each(dilation, rank),
            )
        ]
        x = batched(site, input, rank)

        def fn(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return _gathered(x, w, sizes, windows, groups, dtype)

        result = site.te(f"conv_transpose{rank}d", fn, x, weight.expr)
        return _finish(site, result, bias, rank)

    return build


class _Taps:
    """Which kernel positions reach an output position in one dimension, and from which input.

    Output ``y`` sums the inputs ``i`` with ``y + padding == i * stride + k * dilation``. The ``k``
    that solve it lie ``step`` apart, so a loop over them does none of the work for the zeros that
    a transposed convolution is often written to put between its inputs.
    """

    def __init__(self, size: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
        self.size, self.kernel, self.stride, self.padding = size, kernel, stride, padding
        self.dilation = dilation
        self.common = math.gcd(stride, dilation)
        self.step = stride // self.common
        self.count = -(-kernel // self.step)

    def at(self, y: Any, tap: Any) -> tuple[Any, Any, list[Any]]:
        """The kernel's and the input's index, and the conditions under which they exist."""
        position = y + int64(self.padding)
        inverse = pow(self.dilation // self.common, -1, self.step)
        whole = tirx.floordiv(position, int64(self.common))
        k = tirx.floormod(whole * int64(inverse), int64(self.step)) + tap * int64(self.step)
        i = tirx.floordiv(position - k * int64(self.dilation), int64(self.stride))
        conditions = [i >= int64(0), i < int64(self.size)]
        if self.kernel % self.step:
            conditions.append(k < int64(self.kernel))
        if self.common > 1:
            conditions.append(tirx.EQ(tirx.floormod(position, int64(self.common)), int64(0)))
        return k, i, conditions


def _gathered(
    x: te.Tensor,
    w: te.Tensor,
    sizes: Sequence[int],
    windows: Sequence[_Taps],
    groups: int,
    dtype: torch.dtype,
) -> te.Tensor:
    name = dtype_of(dtype).name
    channels, per_group = int(w.shape[0]) // groups, int(w.shape[1])
    channel = te.reduce_axis((int64(0), int64(channels)), "c")
    taps = [te.reduce_axis((int64(0), int64(window.count)), "k") for window in windows]

    def body(n: Any, o: Any, *place: Any) -> Any:
        found = [window.at(y, tap.var) for window, y, tap in zip(windows, place, taps)]
        source = tirx.floordiv(o, int64(per_group)) * int64(channels) + channel.var
        ks, inputs = [k for k, _, _ in found], [i for _, i, _ in found]
        product = x(n, source, *inputs).astype(name) * w(
            source, tirx.floormod(o, int64(per_group)), *ks
        ).astype(name)
        exists = tirx.all(*[condition for _, _, given in found for condition in given])
        value = tirx.if_then_else(exists, product, tirx.const(0, name))
        return te.sum(value, axis=[channel, *taps])

    return compute([int(x.shape[0]), per_group * groups, *sizes], body, "conv_transpose")


ROWS: tuple[Op, ...] = (
    Op("conv1d", (torch.conv1d,), _convolution(1), gradient=gradients.convolution(1)),
    Op("conv2d", (torch.conv2d,), _convolution(2), gradient=gradients.convolution(2)),
    Op("conv3d", (torch.conv3d,), _convolution(3), gradient=gradients.convolution(3)),
    Op(
        "conv_transpose1d",
        (torch.conv_transpose1d,),
        _transposed(1),
        gradient=gradients.transposed_convolution(1),
    ),
    Op(
        "conv_transpose2d",
        (torch.conv_transpose2d,),
        _transposed(2),
        gradient=gradients.transposed_convolution(2),
    ),
    Op(
        "conv_transpose3d",
        (torch.conv_transpose3d,),
        _transposed(3),
        gradient=gradients.transposed_convolution(3),
    ),
)
