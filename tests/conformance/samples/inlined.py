"""Samples of ops/inlined.py."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.conformance.sample import Sample, t

FULL = (torch.float32, torch.float64)
X, PACKED, OUT = t(5, 2, 8, low=-1, high=1), t(24, 8, low=-0.3, high=0.3), t(8, 8, low=-1, high=1)


def attention(x: Any, y: Any, packed: Any, out: Any, **kwargs: Any) -> Any:
    """A whole layer of two heads, without biases."""
    given = (x, y, y, 8, 2, packed, None, None, None, False, 0.0, out, None)
    return F.multi_head_attention_forward(*given, **kwargs)


SAMPLES = (
    Sample(
        "multi_head_attention_forward",
        lambda x, w, out: attention(x, x, w, out)[0],
        (X, PACKED, OUT),
        FULL,
    ),
    Sample(
        "multi_head_attention_forward",
        lambda x, y, w, out, mask: attention(x, y, w, out, attn_mask=mask, need_weights=False)[0],
        (X, t(7, 2, 8, low=-1, high=1), PACKED, OUT, t(5, 7)),
        FULL,
    ),
    Sample(
        "multi_head_attention_forward",
        lambda x, w, out: attention(x, x, w, out, average_attn_weights=False),
        (t(5, 8, low=-1, high=1), PACKED, OUT),
        FULL,
    ),
    Sample(
        "in_projection",
        lambda q, k, wq, wk: F._in_projection(q, k, k, wq, wk, wk),
        (t(3, 8), t(5, 8), t(8, 8), t(8, 8)),
        FULL,
    ),
    Sample(
        "canonical_mask",
        lambda x, mask: x + F._canonical_mask(mask, "mask", None, "", x.dtype),
        (X, t(5, 2, 8, dtype=torch.bool)),
        FULL,
    ),
    Sample("gumbel_softmax", lambda x: F.gumbel_softmax(x, 0.5).sum(-1), (t(7, 33),), FULL),
    Sample(
        "gumbel_softmax",
        lambda x: F.gumbel_softmax(x, hard=True, dim=0).sum(0),
        (t(7, 33),),
        FULL,
    ),
    Sample(
        "multilabel_soft_margin_loss",
        lambda x, y, w: F.multilabel_soft_margin_loss(x, y, w),
        (t(7, 33), t(7, 33, low=0, high=1), t(33, low=0.5, high=2.0)),
        FULL,
    ),
    Sample(
        "triplet_margin_with_distance_loss",
        lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c, swap=True, reduction="none"),
        (t(7, 5), t(7, 5), t(7, 5)),
        FULL,
    ),
    Sample(
        "triplet_margin_with_distance_loss",
        lambda a, b, c: F.triplet_margin_with_distance_loss(
            a, b, c, distance_function=lambda x, y: 1 - F.cosine_similarity(x, y), margin=0.5
        ),
        (t(7, 5), t(7, 5), t(7, 5)),
        FULL,
    ),
)
