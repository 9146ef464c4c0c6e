"""Samples of ops/normalization.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import Sample, t

W, H = t(8, low=0.5, high=1.5), t(8)

SAMPLES = (
    Sample("layer_norm", lambda x: F.layer_norm(x, (1000,)), (t(7, 1000, low=99.0, high=101.0),)),
    Sample("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), (t(5, 3, 8), W, H)),
    Sample("layer_norm", lambda x, w: F.layer_norm(x, [4, 8], w, eps=0.1), (t(5, 4, 8), t(4, 8))),
    Sample("layer_norm", lambda x: torch.layer_norm(x, (5,)), (t(4, 5, special=True),)),
    Sample("layer_norm", lambda x, b: F.layer_norm(x, (8,), None, b), (t(5, 8), H)),
    Sample("rms_norm", lambda x, w: F.rms_norm(x, (8,), w), (t(5, 3, 8), W)),
    Sample("rms_norm", lambda x, w: F.rms_norm(x, (3, 8), w, 0.1), (t(5, 3, 8), t(3, 8))),
    Sample("rms_norm", lambda x: F.rms_norm(x, (1003,), eps=1e-6), (t(4, 1003),)),
    Sample("group_norm", lambda x: F.group_norm(x, 2), (t(2, 4, 3, 5),)),
    Sample("group_norm", lambda x, w, b: F.group_norm(x, 4, w, b, 0.1), (t(3, 8, 7), W, H)),
    Sample("group_norm", lambda x, w: F.group_norm(x, 2, w), (t(5, 8), W)),
    Sample("group_norm", lambda x, b: F.group_norm(x, 8, None, b), (t(3, 8, 2, 2), H)),
    Sample(
        "batch_norm",
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (t(2, 8, 3, 5), H, W, W, H),
    ),
    Sample("batch_norm", lambda x, m, v: F.batch_norm(x, m, v, eps=0.1), (t(7, 8), H, W)),
    # Training runs through torch.
    Sample(
        "batch_norm", lambda x: F.batch_norm(x, None, None, training=True), (t(7, 8),), gpu=False
    ),
    Sample(
        "batch_norm",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (t(3, 8, 5), W, H),
        gpu=False,
    ),
    Sample(
        "batch_norm",
        lambda x, w, b: F.batch_norm(x, x.detach()[0], w.detach() ** 2, w, b),
        (t(7, 8), W, H),
    ),
    Sample(
        "batch_norm",
        lambda x: F.batch_norm(x, x.detach()[0], x.detach()[0].exp()),
        (t(7, 8),),
    ),
    Sample("instance_norm", lambda x: F.instance_norm(x), (t(2, 3, 7),)),
    Sample(
        "instance_norm",
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (t(2, 8, 4, 5), W, H),
    ),
    Sample(
        "instance_norm",
        lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False),
        (t(2, 8, 4, 5), H, W),
    ),
    # torch's own have their arguments in another order.
    Sample(
        "torch.batch_norm",
        lambda x, w, b, m, v: torch.batch_norm(x, w, b, m, v, False, 0.1, 1e-5, False),
        (t(2, 8, 3, 5), W, H, H, W),
    ),
    Sample(
        "torch.batch_norm",
        lambda x, m, v: torch.batch_norm(x, None, None, m, v, False, 0.1, 0.1, False),
        (t(7, 8), H, W),
    ),
    Sample(
        "torch.instance_norm",
        lambda x, w, b: torch.instance_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
        (t(2, 8, 4, 5), W, H),
    ),
    Sample(
        "torch.instance_norm",
        lambda x, m, v: torch.instance_norm(x, None, None, m, v, False, 0.1, 1e-5, False),
        (t(2, 8, 4, 5), H, W),
    ),
    Sample("local_response_norm", lambda x: F.local_response_norm(x, 3), (t(2, 7, 5),)),
    Sample(
        "local_response_norm",
        lambda x: F.local_response_norm(x, 4, 0.5),
        (t(2, 5, 3, 3),),
        (torch.float32, torch.float64),
    ),
    Sample("normalize", lambda x: F.normalize(x), (t(7, 64),)),
    Sample("normalize", lambda x: F.normalize(x * 0, p=1.0, dim=0), (t(3, 5),)),
    Sample("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), (t(7, 64), t(7, 64))),
    Sample("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 0), (t(9, 3), t(9, 1))),
    Sample("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), (t(7, 64), t(7, 64))),
    Sample("pairwise_distance", lambda x, y: F.pairwise_distance(x, y, 1, 0.1, True), (t(5), t(5))),
)
