"""Losses over classes, whose target is the index of one of them.

A target outside of the classes gives NaN, where torch raises; no memory outside is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tvm import te, tirx

from babytriton.ops import classification_parts as parts
from babytriton.ops import numerics
from babytriton.ops.axes import Axes
from babytriton.ops.classification_parts import class_dim, of_probabilities
from babytriton.ops.loss_reduction import reduction_of
from babytriton.ops.moments import widened
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.softmax import exponentials
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of

LogProbabilities = Callable[[te.Tensor, Axes], te.Tensor]


def _cross_entropy(
    site: Site,
    input: Value,
    target: Value,
    weight: Value | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    reduction = reduction_of(size_average, reduce, reduction)
    if target.dtype.is_floating_point:
        dtype = numerics.opmath(site.dtype)
        log_probability = F.log_softmax(input.to(dtype), class_dim(input))
        loss = of_probabilities(log_probability, target, weight, reduction, label_smoothing)
        return loss.to(site.dtype)
    losses = _losses(site, input, target, weight, ignore_index, _log_softmax, label_smoothing)
    return _reduced(site, losses, target, weight, ignore_index, reduction)


def _nll_loss(
    site: Site,
    input: Value,
    target: Value,
    weight: Value | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    reduction = reduction_of(size_average, reduce, reduction)
    losses = _losses(site, input, target, weight, ignore_index, lambda x, _: x)
    return _reduced(site, losses, target, weight, ignore_index, reduction)


def _multi_margin_loss(
    site: Site,
    input: Value,
    target: Value,
    p: int = 1,
    margin: float = 1.0,
    weight: Value | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    # A single row's target may have one element, or no dimension.
    rows = input.reshape(-1, input.shape[-1] if input.ndim else 1)
    axes = Axes.of(rows, 1)
    dtype = numerics.opmath(input.dtype)
    name = dtype_of(dtype).name
    classes = rows.shape[1]

    def fn(x: te.Tensor, t: te.Tensor, *weights: te.Tensor) -> te.Tensor:
        def over(n: Any, c: Any) -> Any:
            own, inside = _class_at(t, [n], classes)
            short = x(n, c).astype(name) - x(n, own).astype(name) + tirx.const(margin, name)
            short = tirx.Select(short < 0, tirx.const(0, name), short)
            counted = tirx.Select(tirx.EQ(c, own), tirx.const(0, name), short)
            counted = counted * counted if p == 2 else counted
            for w in weights:
                counted = counted * w(own).astype(name)
            return tirx.Select(inside, counted, tirx.const(math.nan, name))

        total = axes.reduce("over", over)
        return axes.each("multi_margin_loss", lambda n: axes.over_length(total(n)))

    operands = [rows, target.reshape(-1), *([] if weight is None else [weight])]
    losses = site.te("multi_margin_loss", fn, *(v.expr for v in operands))
    found = site.value(losses, rows.shape[:1], dtype)
    reduction = reduction_of(size_average, reduce, reduction)
    if reduction == "none":
        return found.reshape(site.shape).to(site.dtype)
    return (found.mean() if reduction == "mean" else found.sum()).to(site.dtype)


def _linear_cross_entropy(
    site: Site,
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Any:
    """Of what a layer gives for each class, and for each place where its weight has such."""
    if options is not None:
        raise Unsupported("torch goes over some rows after the others, as options ask for")
    bias = None if linear_bias is None else linear_bias.flatten()
    found: Any = F.linear(input, linear_weight.flatten(0, -2), bias)
    return F.cross_entropy(
        found.reshape(*input.shape[:-1], *linear_weight.shape[:-1]),
        target,
        weight,
        ignore_index=-100 if ignore_index is None else ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _log_softmax(x: te.Tensor, axes: Axes) -> te.Tensor:
    shifted, _, total = exponentials(x, axes)
    log_total = axes.each("log_total", lambda *i: te.log(total(*i)))
    return te.compute(
        x.shape, lambda *i: shifted(*i) - axes.at(log_total, i), name="log_probability"
    )


def _losses(
    site: Site,
    input: Value,
    target: Value,
    weight: Value | None,
    ignore_index: int,
    log_probabilities: LogProbabilities,
    label_smoothing: float = 0.0,
) -> Value:
    """The loss of each target, 0 for those ignored, as one kernel that stores nothing else."""
    axes = Axes.of(input, class_dim(input))
    dim = axes.dims[0]
    dtype = numerics.opmath(input.dtype)
    name = dtype_of(dtype).name
    classes = axes.length

    def fn(x: te.Tensor, t: te.Tensor, *weights: te.Tensor) -> te.Tensor:
        x = widened(x, input.dtype)
        log_probability = log_probabilities(x, axes)

        def weighted(value: Any, c: Any) -> Any:
            return value * weights[0](c).astype(name) if weights else value

        def chosen(tensor: te.Tensor, index: Any) -> Any:
            own, _ = _class_at(t, index, classes)
            return tensor(*index[:dim], own, *index[dim:])

        if label_smoothing:
            # Less the number of the class, which is there before the maximum: one pass has both.
            base = axes.each("base", lambda *i: numerics.finite(chosen(x, i)))
            spread = axes.reduce("spread", lambda *i: weighted(x(*i) - axes.at(base, i), i[dim]))
            one = tirx.const(1, name)
            given = axes.reduce("given", lambda *i: weighted(one, i[dim])) if weights else None

        def loss(*index: Any) -> Any:
            own, inside = _class_at(t, index, classes)
            log_chosen = chosen(log_probability, index)
            value = weighted(log_chosen, own)
            if label_smoothing:
                count = axes.count(name) if given is None else given(*index)
                smooth = log_chosen * count + spread(*index)
                value = value * tirx.const(1 - label_smoothing, name)
                value = value + axes.over_length(smooth * tirx.const(label_smoothing, name))
            zero, nan = tirx.const(0, name), tirx.const(math.nan, name)
            value = tirx.Select(inside, zero - value, nan)
            return tirx.Select(_is_ignored(t, index, ignore_index), zero, value)

        return axes.each("loss", loss)

    return _per_target(site, "loss", fn, dtype, target, input, target, weight)


def _reduced(
    site: Site,
    losses: Value,
    target: Any,
    weight: Value | None,
    ignore_index: int,
    reduction: str,
) -> Any:
    """A mean is over the targets that are not ignored, and by their weights."""
    if reduction == "none":
        return losses.to(site.dtype)
    total = losses.sum()
    if reduction == "mean":
        if weight is None:
            total = total / (target != ignore_index).sum()
        else:
            total = total / _weights(site, target, weight, ignore_index).sum()
    return total.to(site.dtype)


def _weights(site: Site, target: Value, weight: Value, ignore_index: int) -> Value:
    """The weight of each target's class, 0 for those ignored."""
    dtype = numerics.opmath(weight.dtype)
    name = dtype_of(dtype).name
    classes = weight.shape[0]

    def fn(t: te.Tensor, w: te.Tensor) -> te.Tensor:
        def one(*index: Any) -> Any:
            own, _ = _class_at(t, index, classes)
            ignored = _is_ignored(t, index, ignore_index)
            return tirx.Select(ignored, tirx.const(0, name), w(own).astype(name))

        return te.compute(t.shape, one, name="weights")

    return _per_target(site, "weights", fn, dtype, target, target, weight)


def _per_target(
    site: Site,
    name: str,
    fn: Callable[..., te.Tensor],
    dtype: torch.dtype,
    target: Value,
    *operands: Value | None,
) -> Value:
    """A kernel that gives one number for each target."""
    found = site.te(name, fn, *(operand.expr for operand in operands if operand is not None))
    return site.value(found, target.shape, dtype)


def _class_at(t: te.Tensor, index: Any, classes: int) -> tuple[Any, Any]:
    """A target as an index that is safe to read at, and whether it is one of the classes."""
    given = t(*index).astype("int64")
    inside = tirx.And(given >= int64(0), given < int64(classes))
    return tirx.max(tirx.min(given, int64(classes - 1)), int64(0)), inside


def _is_ignored(t: te.Tensor, index: Any, ignore_index: int) -> Any:
    return tirx.EQ(t(*index).astype("int64"), int64(ignore_index))


ROWS: tuple[Op, ...] = (
    Op(
        "cross_entropy",
        (F.cross_entropy,),
        _cross_entropy,
        meta=parts.type_of_losses(F.cross_entropy),
        derive=parts.cross_entropy,
    ),
    Op(
        "nll_loss",
        (F.nll_loss,),
        _nll_loss,
        meta=parts.type_of_losses(F.nll_loss),
        derive=parts.nll_loss,
    ),
    Op(
        "multi_margin_loss",
        (F.multi_margin_loss,),
        _multi_margin_loss,
        meta=parts.type_of_multi_margin_loss,
        derive=parts.multi_margin_loss,
    ),
    *(
        Op(name, (getattr(F, name),), _linear_cross_entropy, by_parts=True)
        for name in ("linear_cross_entropy",)
        if hasattr(F, name)  # from torch 2.13 on
    ),
)
