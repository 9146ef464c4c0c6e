"""Attention: matrix products around a softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax, te, tirx

from babytriton.ops.axes import Axes
from babytriton.ops.contraction import contract, require_one_number_dtype
from babytriton.ops.reductions import extreme
from babytriton.ops.refusals import Unsupported
from babytriton.ops.site import Site, compute
from babytriton.ops.sizes import int64, is_one, is_symbolic
from babytriton.ops.table import Op
from babytriton.ops.value import Value
from babytriton.types import dtype_of


def _scaled_dot_product_attention(
    site: Site,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scores, their softmax, and a weighted sum of the values: a kernel each.

    Scores and weights are float32 for half precision; the weights are rounded once, before the
    last product, as torch's own kernels do. Heads that share a head of the keys are a dimension
    of their own, so that keys and values are read where they lie.
    """
    if dropout_p > 0:
        raise Unsupported("dropout draws random numbers")
    dtype = require_one_number_dtype(query, key, value)
    heads = query.meta.shape[-3] if enable_gqa else 1
    shared = key.meta.shape[-3] if enable_gqa else 1
    if enable_gqa and value.meta.shape[-3] != shared:
        raise Unsupported("fewer heads of values than of keys")
    ours, theirs = ("hg", "h") if heads != shared else ("", "")
    q = query.expr
    if ours:
        *before, _, length, width = query.meta.shape
        sizes = (*before, shared, heads // shared, length, width)
        q = site.emit(relax.op.reshape(q, [int64(n) for n in sizes]))
    operands = (q, ours + "le"), (key.expr, theirs + "se"), (value.expr, theirs + "sd")
    # What the letters leave out are batches, which broadcast.
    left, right, last = ([*range(len(s) - len(x.ty.shape), 0), *s] for x, s in operands)
    batch = max(
        (labels[: -len(s)] for labels, (_, s) in zip((left, right, last), operands)), key=len
    )
    scores = contract(site, "scores", [(q, left), (key.expr, right)], [*batch, *ours, "l", "s"])
    scores = _masked(site, scores, query, attn_mask, is_causal, scale)
    weights = site.te("weights", lambda x: _weights(x, dtype), scores)
    terms = [(weights, [*batch, *ours, "l", "s"]), (value.expr, last)]
    result = site.cast(contract(site, "attention", terms, [*batch, *ours, "l", "d"]), dtype)
    return relax.op.reshape(result, [int64(n) for n in site.shape]) if ours else result


def _masked(
    site: Site,
    scores: relax.Expr,
    query: Value,
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
) -> relax.Expr:
    """The scores scaled, and minus infinity where no attention may be paid."""
    shape = list(scores.ty.shape)
    name = str(scores.ty.dtype)
    factor = (
        _default_scale(query.meta.shape[-1], name) if scale is None else tirx.const(scale, name)
    )
    nothing = tirx.const(-math.inf, name)
    rank = query.meta.ndim
    groups = len(shape) > rank
    if mask is not None and mask.meta.ndim > rank:
        raise Unsupported("a mask of more dimensions than the query")

    def body(tensors: Any, *index: Any) -> Any:
        score = tensors[0](*index) * factor
        if is_causal:
            score = tirx.Select(index[-1] <= index[-2], score, nothing)
        if mask is None:
            return score
        given = tensors[1]
        place = list(index)
        if groups:
            place[-4:-2] = [index[-4] * shape[-3] + index[-3]]
        place = place[len(place) - len(given.shape) :]
        allowed = given(*(int64(0) if is_one(n) else i for n, i in zip(given.shape, place)))
        if mask.meta.dtype == torch.bool:
            return tirx.Select(allowed, score, nothing)
        return score + allowed.astype(name)

    masks = [] if mask is None else [mask.expr]
    return site.compute("mask", shape, body, scores, *masks)


def _default_scale(width: int, dtype: str) -> Any:
    if is_symbolic(width):
        return tirx.const(1, dtype) / tirx.sqrt(int64(width).astype(dtype))
    return tirx.const(1 / math.sqrt(width), dtype)


def _weights(scores: te.Tensor, dtype: torch.dtype) -> te.Tensor:
    """The softmax of each row; zeros for a row that may attend to nothing."""
    shape = tuple(scores.shape)
    name = str(scores.dtype)
    axes = Axes(shape, (len(shape) - 1,))
    peak = extreme("peak", axes, scores, largest=True)

    def grown(*index: Any) -> Any:
        top = axes.at(peak, index)
        shift = tirx.Select(top == tirx.const(-math.inf, name), tirx.const(0, name), top)
        return tirx.exp(scores(*index) - shift)

    powers = compute(shape, grown, "powers")
    total = axes.reduce("total", powers)

    def weight(*index: Any) -> Any:
        whole = axes.at(total, index)
        one = tirx.const(1, name)
        share = powers(*index) / tirx.Select(whole == tirx.const(0, name), one, whole)
        return share.astype(dtype_of(dtype).name)

    return compute(shape, weight, "weights")


ROWS: tuple[Op, ...] = (
    Op(
        "scaled_dot_product_attention",
        (F.scaled_dot_product_attention,),
        _scaled_dot_product_attention,
    ),
    Op(
        "multi_head_attention_forward",
        (F.multi_head_attention_forward,),
        why="it runs a module's whole forward pass; scaled_dot_product_attention fuses",
    ),
)
