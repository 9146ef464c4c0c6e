"""Samples of ops/classification.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import Sample, t

X, W = t(7, 33), t(33, low=0.5, high=2.0)
TARGET = t(7, low=0, high=32, dtype=torch.int64)

SAMPLES = (
    Sample("cross_entropy", lambda x, y: F.cross_entropy(x, y), (X, TARGET)),
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(x, y, w, ignore_index=3, label_smoothing=0.1),
        (t(31, 5), t(31, low=0, high=4, dtype=torch.int64), t(5, low=0.5, high=2.0)),
    ),
    Sample(
        "cross_entropy",
        lambda x, y: F.cross_entropy(x, y, reduction="none", label_smoothing=0.2),
        (t(2, 5, 3, 4), t(2, 3, 4, low=0, high=4, dtype=torch.int64)),
    ),
    Sample(
        "cross_entropy",
        lambda x, y: F.cross_entropy(x, y),
        (t(5), t(low=0, high=4, dtype=torch.int64)),
    ),
    Sample("cross_entropy", lambda x, y: F.cross_entropy(x, y), (X, t(7, 33, low=0.0, high=1.0))),
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(x, y, w, reduction="sum", label_smoothing=0.1),
        (t(3, 5, 7), t(3, 5, 7, low=0.0, high=1.0), t(5, low=0.5, high=2.0)),
    ),
    # torch has no gradients of weights, unless targets are probabilities.
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(x, y, w.detach(), ignore_index=3),
        (X, TARGET, W),
    ),
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(x, y, w.detach(), ignore_index=3, label_smoothing=0.1),
        (t(31, 5), t(31, low=0, high=4, dtype=torch.int64), t(5, low=0.5, high=2.0)),
    ),
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(
            x, y - 1, w.detach(), reduction="none", ignore_index=-1, label_smoothing=0.2
        ),
        (t(2, 5, 3, 4), t(2, 3, 4, low=0, high=5, dtype=torch.int64), t(5, low=0.5, high=2.0)),
    ),
    Sample(
        "cross_entropy",
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        (t(7, 33, low=-500.0, high=500.0), TARGET),
    ),
    Sample(
        "cross_entropy",
        lambda x, y: F.cross_entropy(x, y, size_average=False),
        (t(3, 5, 7), t(3, 7, low=0, high=4, dtype=torch.int64)),
    ),
    Sample(
        "cross_entropy",
        lambda x, y, w: F.cross_entropy(x, y, w, reduction="none", label_smoothing=0.1),
        (t(5), t(5, low=0.0, high=1.0), t(5, low=0.5, high=2.0)),
    ),
    Sample("nll_loss", lambda x, y: F.nll_loss(x, y), (X, TARGET)),
    # Of x * x, the gradient has a gradient.
    Sample(
        "nll_loss",
        lambda x, y, w: F.nll_loss(x * x, y, w.detach(), ignore_index=3),
        (X, TARGET, W),
    ),
    Sample(
        "nll_loss",
        lambda x, y, w: F.nll_loss(x * x, y, w.detach(), reduction="none"),
        (t(2, 5, 3), t(2, 3, low=0, high=4, dtype=torch.int64), t(5, low=0.5, high=2.0)),
    ),
    Sample("nll_loss", lambda x, y, w: F.nll_loss(x, y, w, ignore_index=3), (X, TARGET, W)),
    Sample(
        "nll_loss",
        lambda x, y: F.nll_loss(x, y, reduction="sum"),
        (t(2, 5, 3), t(2, 3, low=0, high=4, dtype=torch.int64)),
    ),
    # bfloat16 and float16 are not implemented in torch.
    Sample(
        "multi_margin_loss",
        lambda x, y: F.multi_margin_loss(x, y),
        (X, TARGET),
        (torch.float32, torch.float64),
    ),
    Sample(
        "multi_margin_loss",
        lambda x, y, w: F.multi_margin_loss(x, y, 2, 0.5, w, reduction="none"),
        (X, TARGET, W),
        (torch.float32, torch.float64),
    ),
    *(
        Sample("linear_cross_entropy", fn, (t(6, 5), *rest))
        for fn, *rest in (
            (
                lambda x, w, y, b: F.linear_cross_entropy(x, w, y, linear_bias=b),
                t(7, 5),
                t(6, low=0, high=6, dtype=torch.int64),
                t(7),
            ),
            (
                lambda x, w, y: F.linear_cross_entropy(
                    x, w, y, ignore_index=3, label_smoothing=0.1, reduction="sum"
                ),
                t(7, 3, 5),
                t(6, 3, low=0, high=6, dtype=torch.int64),
            ),
            (
                lambda x, w, y: F.linear_cross_entropy(x, w, y, reduction="none"),
                t(7, 5),
                t(6, 7, low=0, high=1),
            ),
        )
        if hasattr(F, "linear_cross_entropy")  # from torch 2.13 on
    ),
)
