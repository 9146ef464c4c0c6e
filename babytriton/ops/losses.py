"""Losses: what torch.nn.functional computes of a prediction and a target.

Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from babytriton.ops import numerics
from babytriton.ops.gradients import losses as gradients
from babytriton.ops.loss_reduction import reduction_of
from babytriton.ops.site import Site
from babytriton.ops.table import Op
from babytriton.ops.value import Value


def _wide(*values: Any) -> list[Any]:
    """Tensors in the dtype to compute in; numbers and ``None`` as they are."""
    return [v.to(numerics.opmath(v.dtype)) if isinstance(v, Value) else v for v in values]


def _reduced(site: Site, loss: Any, how: tuple[Any, Any, str]) -> Any:
    """The loss of each element reduced as asked.

    Args:
        site: of the call.
        loss: of each element.
        how: torch's ``size_average`` and ``reduce``, from before ``reduction`` was, and that.
    """
    reduction = reduction_of(*how)
    if reduction == "mean":
        loss = loss.mean()
    elif reduction in ("sum", "batchmean"):
        loss = loss.sum()
    return loss.to(site.dtype)


def _weighted(site: Site, loss: Any, weight: Any, how: tuple[Any, Any, str]) -> Any:
    """As :func:`_reduced`, but a mean is weighted."""
    if weight is None:
        return _reduced(site, loss, how)
    if reduction_of(*how) == "mean":
        return ((loss * weight).sum() / weight.sum()).to(site.dtype)
    return _reduced(site, loss * weight, how)


# Distances


def _mse_loss(
    site: Site,
    input: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Value | None = None,
) -> Any:
    x, y, w = _wide(input, target, weight)
    return _weighted(site, torch.square(x - y), w, (size_average, reduce, reduction))


def _l1_loss(
    site: Site,
    input: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Value | None = None,
) -> Any:
    x, y, w = _wide(input, target, weight)
    return _weighted(site, (x - y).abs(), w, (size_average, reduce, reduction))


def _smooth_l1_loss(
    site: Site,
    input: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    x, y = _wide(input, target)
    difference = x - y
    distance = difference.abs()
    if beta:
        # Not of the distance, which has no second derivative at 0.
        near = 0.5 * torch.square(difference) / beta
        distance = torch.where(distance < beta, near, distance - 0.5 * beta)
    return _reduced(site, distance, (size_average, reduce, reduction))


def _huber_loss(
    site: Site,
    input: Value,
    target: Value,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Value | None = None,
) -> Any:
    x, y, w = _wide(input, target, weight)
    difference = x - y
    distance = difference.abs()
    far = delta * (distance - 0.5 * delta)
    loss = torch.where(distance < delta, 0.5 * torch.square(difference), far)
    # Other than those above, this mean does not divide by the weights.
    return _reduced(site, loss if w is None else loss * w, (None, None, reduction))


# Of probabilities and their logarithms


def _binary_cross_entropy(
    site: Site,
    input: Value,
    target: Value,
    weight: Value | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """torch raises where a probability is outside of 0 to 1; this gives NaN."""
    x, y, w = _wide(input, target, weight)
    loss = gradients.binary_cross_entropy_of_each(x, y)
    return _reduced(site, loss if w is None else loss * w, (size_average, reduce, reduction))


def _binary_cross_entropy_with_logits(
    site: Site,
    input: Value,
    target: Value,
    weight: Value | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Value | None = None,
) -> Any:
    x, y, w, positive = _wide(input, target, weight, pos_weight)
    loss = gradients.binary_cross_entropy_with_logits_of_each(x, y, positive)
    return _reduced(site, loss if w is None else loss * w, (size_average, reduce, reduction))


def _kl_div(
    site: Site,
    input: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    x, y = _wide(input, target)
    loss = y.exp() * (y - x) if log_target else torch.xlogy(y, y) - y * x
    if reduction == "batchmean" and size_average is None and reduce is None and x.ndim:
        return (loss.sum() / x.shape[0]).to(site.dtype)
    return _reduced(site, loss, (size_average, reduce, reduction))


def _poisson_nll_loss(
    site: Site,
    input: Value,
    target: Value,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: float = 1e-8,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    x, y = _wide(input, target)
    loss = x.exp() - y * x if log_input else x - y * torch.log(x + eps)
    if full:
        stirling = y * y.log() - y + 0.5 * torch.log(2 * math.pi * y)
        loss = loss + torch.where(y <= 1, 0.0, stirling)
    return _reduced(site, loss, (size_average, reduce, reduction))


def _gaussian_nll_loss(
    site: Site,
    input: Value,
    target: Value,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """torch raises where a variance is negative; this takes ``eps`` instead."""
    x, y, variance = _wide(input, target, var)
    if not isinstance(variance, Value):
        variance = torch.full_like(x, variance)
    if variance.shape == x.shape[:-1] and variance.shape != x.shape:
        variance = variance.unsqueeze(-1)
    # As for torch, the gradient of a variance that is too small is that of ``eps``.
    variance = variance + torch.where(variance < eps, eps - variance, 0.0).detach()
    loss = 0.5 * (variance.log() + (x - y) * (x - y) / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduced(site, loss, (None, None, reduction))


# With margins


def _hinge_embedding_loss(
    site: Site,
    input: Value,
    target: Value,
    margin: float = 1.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    x, y = _wide(input, target)
    apart = torch.where(y != 1, (margin - x).clamp_min(0), 0.0)
    loss = apart + torch.where(y != -1, x, 0.0)
    return _reduced(site, loss, (size_average, reduce, reduction))


def _margin_ranking_loss(
    site: Site,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    one, two, y = _wide(input1, input2, target)
    loss = (-y * (one - two) + margin).clamp_min(0)
    return _reduced(site, loss, (size_average, reduce, reduction))


def _soft_margin_loss(
    site: Site,
    input: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    x, y = _wide(input, target)
    return _reduced(site, torch.log1p(torch.exp(-y * x)), (size_average, reduce, reduction))


def _cosine_embedding_loss(
    site: Site,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    one, two, y = _wide(input1, input2, target)
    eps = 1e-12
    lengths = ((one * one).sum(-1) + eps) * ((two * two).sum(-1) + eps)
    cosine = (one * two).sum(-1) / torch.sqrt(lengths)
    apart = torch.where(y == -1, (cosine - margin).clamp_min(0), 0.0)
    loss = torch.where(y == 1, 1 - cosine, 0.0) + apart
    return _reduced(site, loss, (size_average, reduce, reduction))


def _triplet_margin_loss(
    site: Site,
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    a, same, other = _wide(anchor, positive, negative)
    far = F.pairwise_distance(a, other, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(same, other, p, eps))
    loss = (F.pairwise_distance(a, same, p, eps) - far + margin).clamp_min(0)
    return _reduced(site, loss, (size_average, reduce, reduction))


def _composed(name: str, build: Callable[..., Any]) -> Op:
    """A row that is made of others, which have its gradient."""
    return Op(name, (getattr(F, name),), build, by_parts=True)


ROWS: tuple[Op, ...] = (
    _composed("mse_loss", _mse_loss),
    _composed("l1_loss", _l1_loss),
    _composed("smooth_l1_loss", _smooth_l1_loss),
    _composed("huber_loss", _huber_loss),
    Op(
        "binary_cross_entropy",
        (F.binary_cross_entropy,),
        _binary_cross_entropy,
        gradient=gradients.binary_cross_entropy,
    ),
    Op(
        "binary_cross_entropy_with_logits",
        (F.binary_cross_entropy_with_logits,),
        _binary_cross_entropy_with_logits,
        gradient=gradients.binary_cross_entropy_with_logits,
    ),
    _composed("kl_div", _kl_div),
    _composed("poisson_nll_loss", _poisson_nll_loss),
    _composed("gaussian_nll_loss", _gaussian_nll_loss),
    _composed("hinge_embedding_loss", _hinge_embedding_loss),
    _composed("margin_ranking_loss", _margin_ranking_loss),
    _composed("soft_margin_loss", _soft_margin_loss),
    _composed("cosine_embedding_loss", _cosine_embedding_loss),
    _composed("triplet_margin_loss", _triplet_margin_loss),
)
