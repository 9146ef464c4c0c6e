"""Losses over classes in parts, for gradients: the way back needs more of the way than its end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tvm import tirx

from babytriton.ops import numerics
from babytriton.ops.gradients import classification as gradients
from babytriton.ops.loss_reduction import reduction_of
from babytriton.ops.parts import part
from babytriton.ops.refusals import IllTyped
from babytriton.ops.site import Site
from babytriton.ops.sizes import int64
from babytriton.ops.softmax import top_of_row
from babytriton.ops.subscript import checked
from babytriton.ops.table import Op
from babytriton.ops.value import Value


def class_dim(input: Value) -> int:
    """The dimension of a prediction that its classes have."""
    return 1 if input.ndim > 1 else 0


def of_probabilities(
    log_probability: Any, target: Any, weight: Any, reduction: str, label_smoothing: float
) -> Any:
    """The loss where targets are the probabilities of classes."""
    dtype, dim = log_probability.dtype, class_dim(log_probability)
    classes = log_probability.shape[dim]
    expected = target.to(dtype)
    if label_smoothing:
        expected = expected * (1 - label_smoothing) + label_smoothing / classes
    terms = log_probability * expected
    if weight is not None:
        terms = terms * _along_classes(weight.to(dtype), log_probability, dim)
    if reduction == "none":
        return -terms.sum(dim)
    total = -terms.sum()
    return total / (log_probability.numel() / classes) if reduction == "mean" else total


def _along_classes(weight: Any, input: Any, dim: int) -> Any:
    """Weights of classes with the dimensions of the input, to which they broadcast."""
    return weight.reshape((-1,) + (1,) * (input.ndim - dim - 1))


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """The loss of logits; a maximum and a sum of each row are all that it keeps."""
    reduction = reduction_of(size_average, reduce, reduction)
    dim = class_dim(input)
    given = [x.dtype for x in (input, target, weight) if x is not None and x.is_floating_point()]
    narrow = functools.reduce(torch.promote_types, given)
    wide = numerics.opmath(narrow)
    x = input.to(wide)
    # What is taken away and added again has no gradient.
    top = top_of_row(x, dim)
    shifted = x - top
    log_total = shifted.exp().sum(dim, keepdim=True).log()
    if target.dtype.is_floating_point:
        log_probability = shifted - log_total
        loss = of_probabilities(log_probability, target, weight, reduction, label_smoothing)
        return loss.to(narrow)
    # Of the logarithms of probabilities themselves, the gradient would be a sum along each row.
    log_total = log_total.squeeze(dim)
    losses = log_total - of_class(shifted, target, dim, ignore_index)
    if weight is not None:
        losses = losses * _weights_of(x, target, weight, ignore_index)
    if label_smoothing:
        # Less the number of the class, which is there before the maximum: one pass has both.
        base = of_class(x.detach(), target, dim, ignore_index)
        base = torch.where(torch.isfinite(base), base, 0.0)
        log_total = log_total + (top.squeeze(dim) - base)
        smooth = _smooth(x - base.unsqueeze(dim), log_total, weight, dim)
        losses = losses * (1 - label_smoothing) + smooth * (label_smoothing / input.shape[dim])
    return _over_targets(losses, x, target, weight, ignore_index, reduction).to(narrow)


def _smooth(shifted: Any, log_total: Any, weight: Any, dim: int) -> Any:
    """What the loss of each target would be for each class, in sum.

    Args:
        shifted: what is predicted, less a number for each target.
        log_total: the logarithm of the sum of exponentials of that.
        weight: of each class.
        dim: the dimension of the classes.
    """
    if weight is None:
        return log_total * shifted.shape[dim] - shifted.sum(dim)
    weight = weight.to(shifted.dtype)
    return log_total * weight.sum() - (shifted * _along_classes(weight, shifted, dim)).sum(dim)


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """The loss of the logarithms of probabilities."""
    reduction = reduction_of(size_average, reduce, reduction)
    dim = class_dim(input)
    x = input.to(numerics.opmath(input.dtype))
    losses = -of_class(x, target, dim, ignore_index)
    if weight is not None:
        losses = losses * _weights_of(x, target, weight, ignore_index)
    return _over_targets(losses, x, target, weight, ignore_index, reduction).to(input.dtype)


def _over_targets(
    losses: Any, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str
) -> Any:
    """Losses of targets reduced as asked; those ignored are 0, and count for nothing in a mean."""
    counted = target != ignore_index
    losses = torch.where(counted, losses, 0.0)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "mean":
        if weight is not None:
            # Written anew: what both sums read would be a kernel's result.
            counted = _weights_of(input, target, weight, ignore_index)
        total = total / counted.sum()
    return total


def _weights_of(input: Any, target: Any, weight: Any, ignore_index: int) -> Any:
    """The weight of each target's class, 0 for those ignored."""
    dim = class_dim(input)
    along = _along_classes(weight.to(input.dtype), input, dim)
    return of_class(along.expand(input.shape), target, dim, ignore_index)


def type_of_losses(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What gives the type of a loss of classes, by what torch gives for meta tensors."""

    def type_of(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        *more: Any,
        **named: Any,
    ) -> Any:
        if target.is_floating_point() and (fn is F.nll_loss or target.ndim != input.ndim):
            # torch complains of what it calls with them.
            also = "" if fn is F.nll_loss else ", or probabilities in the shape of the input"
            raise IllTyped(f"the target must be classes of dtype int64{also}")
        args = (input, target, weight, size_average, ignore_index, reduce, reduction, *more)
        found = fn(*args, **named)
        is_each = reduction_of(size_average, reduce, reduction) == "none"
        # Of rows as many as is known only at the call, torch's own has no dimensions.
        is_wrong = is_each and not target.is_floating_point() and found.ndim != target.ndim
        return found.new_empty(target.shape) if is_wrong else found

    return type_of


def type_of_multi_margin_loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch gives, as a meta tensor."""
    found = F.multi_margin_loss(input, target, *args, **kwargs)
    # Its own has one element where others have no dimensions.
    return found if target.ndim else found.reshape(())


def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """The loss of classes whose score comes near to that of the target."""
    rows = input.reshape(-1, input.shape[-1] if input.ndim else 1)
    rows = rows.to(numerics.opmath(input.dtype))
    targets = target.reshape(-1)
    short = rows - of_class(rows, targets, 1).unsqueeze(1) + margin
    # At 0 the gradient is 0; NaN, of what is no class, stays.
    none = (short <= 0) | gradients.is_class(targets, rows.shape[1], 1)
    counted = torch.where(none, 0.0, short)
    counted = torch.square(counted) if p == 2 else counted
    losses = counted.mean(1)
    if weight is not None:
        losses = losses * of_class(weight.to(rows.dtype).expand(rows.shape), targets, 1)
    reduction = reduction_of(size_average, reduce, reduction)
    if reduction == "none":
        losses = losses.reshape(target.shape)
    else:
        losses = losses.mean() if reduction == "mean" else losses.sum()
    return losses.to(input.dtype)


@part
def of_class(input: Any, target: Any, dim: int, ignored: int | None = None) -> Any:
    """The number of each target's class, whose dimension the result has not; 0 if ignored."""
    found = torch.gather(input, dim, target.long().unsqueeze(dim)).squeeze(dim)
    return found if ignored is None else torch.where(target == ignored, 0.0, found)


def _of_class(site: Site, input: Value, target: Value, dim: int, ignored: int | None = None) -> Any:
    def body(tensors: Any, *index: Any) -> Any:
        x, t = tensors
        own = t(*index).astype("int64")
        found = checked(x, [*index[:dim], own, *index[dim:]], [dim])
        if ignored is None:
            return found
        return tirx.Select(tirx.EQ(own, int64(ignored)), numerics.like(found, 0), found)

    return site.gather("of_class", site.shape, body, input.expr, target.expr)


PARTS: tuple[Op, ...] = (Op("of_class", (of_class,), _of_class, gradient=gradients.of_class),)
