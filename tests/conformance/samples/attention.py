"""Samples of ops/attention.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import Sample, t

FULL = (torch.float32, torch.float64)
BOOL = torch.bool


SAMPLES = (
    Sample(
        "scaled_dot_product_attention",
        lambda *xs: F.scaled_dot_product_attention(*xs),
        (t(2, 3, 7, 8), t(2, 3, 13, 8), t(2, 3, 13, 5)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (t(1, 2, 31, 16), t(1, 2, 31, 16), t(1, 2, 31, 16)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (t(3, 9, 4), t(3, 5, 4), t(3, 5, 4)),
    ),
    # A mask of bools at random leaves some rows with nothing to attend to.
    Sample(
        "scaled_dot_product_attention",
        lambda *xs: F.scaled_dot_product_attention(*xs),
        (t(2, 3, 7, 8), t(2, 3, 2, 8), t(2, 3, 2, 8), t(7, 2, dtype=BOOL)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda *xs: F.scaled_dot_product_attention(*xs),
        (t(2, 3, 7, 8), t(2, 3, 6, 8), t(2, 3, 6, 8), t(2, 1, 7, 6)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (t(1, 6, 7, 8), t(1, 2, 5, 8), t(1, 2, 5, 8)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        (t(2, 4, 7, 8), t(2, 2, 5, 8), t(2, 2, 5, 8), t(2, 4, 7, 5, dtype=BOOL)),
    ),
    Sample(
        "scaled_dot_product_attention",
        lambda *xs: F.scaled_dot_product_attention(*xs),
        (t(7, 8), t(9, 8), t(9, 8)),
    ),
    *(
        Sample("in_projection_packed", fn, (t(3, 8), t(5, 8), t(24, 8), t(24)), FULL)
        for fn in (
            lambda x, y, w, b: F._in_projection_packed(x, x, x, w, b),
            lambda x, y, w, b: F._in_projection_packed(x, y, y, w, b),
            lambda x, y, w, b: F._in_projection_packed(x, y, y * 2, w),
        )
    ),
)
