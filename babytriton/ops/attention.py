"""Attention: matrix products around a softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from tvm import relax, te, tirx

from babytriton.ops.axes import Axes
from babytriton.ops.choice import keep_product_on
from babytriton.ops.contraction import contract, require_one_number_dtype
from babytriton.ops.reductions import extreme
from babytriton.ops.refusals import Random, Unsupported
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
        raise Random
    _require_known_heads(query, key, value, attn_mask, enable_gqa)
    dtype = require_one_number_dtype(query, key, value)
    _keep(site.builder.device, dtype, query, key)
    heads = query.meta.shape[-3] if enable_gqa else 1
    shared = key.meta.shape[-3] if enable_gqa else 1
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


def _by_parts(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The same in plain torch, in float32 for half precision, for the gradients of its parts."""
    device, dtype = query.emitter.device, require_one_number_dtype(query, key, value)
    if dropout_p > 0 and device.type != "cpu":
        # torch's kernels for GPUs draw other numbers than its parts would.
        raise Random
    _keep(device, dtype, query, key)
    _require_known_heads(query, key, value, attn_mask, enable_gqa)
    heads, shared = (query.shape[-3], key.shape[-3]) if enable_gqa else (1, 1)
    q, k, v = (x.to(torch.promote_types(dtype, torch.float32)) for x in (query, key, value))
    ours, theirs = ("hg", "h") if heads != shared else ("", "")
    if ours:
        q = q.reshape(*q.shape[:-3], shared, heads // shared, *q.shape[-2:])
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum(f"...{ours}le,...{theirs}se->...{ours}ls", q, k) * factor
    if is_causal:
        rows, columns = (query.emitter.call(torch.arange, (n,), {}) for n in scores.shape[-2:])
        scores = torch.where(columns > rows.unsqueeze(-1), -math.inf, scores)
    if attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        weights = _masked_softmax(scores, attn_mask, shared if ours else None)
    if dropout_p > 0:
        # As torch.dropout: one draw a weight, and none for a share of nothing.
        kept = torch.bernoulli(weights.detach(), 1 - dropout_p)
        weights = weights * (kept / (1 - dropout_p)) if dropout_p < 1 else weights * 0
    result = torch.einsum(f"...{ours}ls,...{theirs}sd->...{ours}ld", weights, v).to(dtype)
    return result.reshape(*query.shape[:-1], value.shape[-1]) if ours else result


def _in_projection_packed(
    site: Site, q: Any, k: Any, v: Any, w: Any, b: Any | None = None
) -> tuple[Any, ...]:
    """Queries, keys and values of three tensors: a product for each that is another one."""
    weights, biases = w.chunk(3), (None,) * 3 if b is None else b.chunk(3)
    if not k.expr.same_as(v.expr):
        return tuple(map(F.linear, (q, k, v), weights, biases))
    if q.expr.same_as(k.expr):
        return tuple(F.linear(q, w, b).chunk(3, -1))
    width = q.shape[-1]
    both = F.linear(k, w[width:], None if b is None else b[width:])
    return F.linear(q, weights[0], biases[0]), *both.chunk(2, -1)


def _keep(device: torch.device, dtype: torch.dtype, query: Any, key: Any) -> None:
    """Nothing, where torch's attention is no faster: it keeps no scores in memory."""
    keep_product_on(
        device,
        dtype,
        (query.shape, [*_batch(query), "l", "e"]),
        (key.shape, [*_batch(key), "s", "e"]),
    )


def _batch(x: Value) -> list[int]:
    return [*range(2 - x.meta.ndim, 0)]


def _masked_softmax(scores: Any, mask: Any, shared: int | None) -> Any:
    """The softmax of scores under a mask; zeros for a row that may attend to nothing.

    Args:
        scores: of each head; with a dimension for the heads of the keys before that of the heads
            that share one, where there are such.
        mask: of bools, or what is added to the scores.
        shared: how many heads the keys then have.
    """
    if shared is not None and mask.ndim > 2:
        heads = mask.shape[-3]
        sizes = (1, 1) if is_one(heads) else (shared, heads // shared)
        mask = mask.reshape(*mask.shape[:-3], *sizes, *mask.shape[-2:])
    if mask.dtype == torch.bool:
        scores = torch.where(mask, scores, -math.inf)
        dead = ~mask.any(-1, keepdim=True)
    else:
        scores = scores + mask
        dead = (mask.detach() == -math.inf).all(-1, keepdim=True)
    # A softmax of such a row has no numbers, nor have its gradients.
    return torch.where(dead, 0.0, torch.softmax(torch.where(dead, 0.0, scores), -1))


def _require_known_heads(
    query: Value, key: Value, value: Value, mask: Value | None, enable_gqa: bool
) -> None:
    """Nothing, for what is as torch's documentation has it.

    Raises:
        Unsupported: torch takes more.
    """
    if enable_gqa and value.meta.shape[-3] != key.meta.shape[-3]:
        raise Unsupported("fewer heads of values than of keys")
    if mask is not None and mask.meta.ndim > query.meta.ndim:
        raise Unsupported("a mask of more dimensions than the query")


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
        derive=_by_parts,
    ),
    Op(
        "in_projection_packed",
        (vars(F)["_in_projection_packed"],),
        _in_projection_packed,
        by_parts=True,
    ),
)
