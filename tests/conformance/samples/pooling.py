"""Samples of ops/pooling.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import FLOATS, Sample, t

FULL = (torch.float32, torch.float64)
INT64 = (torch.int64,)

SAMPLES = (
    Sample("avg_pool1d", lambda x: F.avg_pool1d(x, 3), (t(2, 3, 31),), FLOATS + INT64),
    Sample(
        "avg_pool1d",
        lambda x: F.avg_pool1d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False),
        (t(3, 1003),),
    ),
    Sample("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (t(2, 3, 8, 10),), FLOATS + INT64),
    Sample(
        "avg_pool2d",
        lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True),
        (t(1, 3, 8, 7, special=True),),
    ),
    Sample(
        "avg_pool2d",
        lambda x: F.avg_pool2d(x, 3, padding=1, divisor_override=5),
        (t(3, 10, 7),),
    ),
    Sample(
        "avg_pool3d",
        lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False, ceil_mode=True),
        (t(1, 2, 5, 6, 7),),
        FULL,
    ),
    Sample("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 7), (t(2, 3, 31),)),
    Sample("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (t(2, 3, 7, 7),)),
    Sample(
        "adaptive_avg_pool2d",
        lambda x: F.adaptive_avg_pool2d(x, (None, 5)),
        (t(3, 8, 13, special=True),),
    ),
    Sample(
        "adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 9)), (t(1, 2, 4, 5, 6),)
    ),
    Sample("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), (t(2, 3, 31, special=True),)),
    Sample(
        "max_pool1d",
        lambda x: F.max_pool1d(x, 3, return_indices=True),
        (t(3, 1003, special=True),),
    ),
    Sample(
        "max_pool2d",
        lambda x: F.max_pool2d(x, 2),
        (t(2, 3, 8, 10),),
        (*FLOATS, torch.int64, torch.int32, torch.uint8),
    ),
    Sample(
        "max_pool2d",
        lambda x: torch.max_pool2d(x, (3, 2), (1, 2), (1, 0), (1, 3), ceil_mode=True),
        (t(1, 3, 9, 10, special=True),),
    ),
    Sample(
        "max_pool2d_with_indices",
        lambda x: F.max_pool2d_with_indices(x, 3, 1, 1, 2, return_indices=True),
        (t(2, 7, 9, special=True),),
        (*FLOATS, torch.int64),
    ),
    Sample(
        "max_pool3d",
        lambda x: F.max_pool3d(x, 2, stride=1, ceil_mode=True),
        (t(1, 2, 3, 4, 5, special=True),),
    ),
    Sample(
        "max_pool3d",
        lambda x: F.max_pool3d(x, 2, padding=1, return_indices=True),
        (t(2, 4, 4, 4),),
        FULL,
    ),
    Sample(
        "adaptive_max_pool1d",
        lambda x: F.adaptive_max_pool1d(x, 5, return_indices=True),
        (t(2, 3, 31, special=True),),
    ),
    Sample(
        "adaptive_max_pool2d",
        lambda x: F.adaptive_max_pool2d(x, (None, 1)),
        (t(2, 3, 7, 9, special=True),),
    ),
    Sample(
        "adaptive_max_pool3d",
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True),
        (t(2, 4, 5, 6),),
    ),
    Sample(
        "max_pool1d_with_indices",
        lambda x: F.max_pool1d_with_indices(x, 2, 1, dilation=2),
        (t(2, 3, 9),),
        FULL,
    ),
    Sample(
        "max_pool3d_with_indices",
        lambda x: F.max_pool3d_with_indices(x, 2, padding=1),
        (t(2, 4, 4, 4),),
        FULL,
    ),
    Sample(
        "adaptive_max_pool1d_with_indices",
        lambda x: F.adaptive_max_pool1d_with_indices(x, 3),
        (t(2, 3, 9),),
        FULL,
    ),
    Sample(
        "adaptive_max_pool2d_with_indices",
        lambda x: F.adaptive_max_pool2d_with_indices(x, (2, 3)),
        (t(2, 3, 4, 6),),
        FULL,
    ),
    Sample(
        "adaptive_max_pool3d_with_indices",
        lambda x: F.adaptive_max_pool3d_with_indices(x, 2),
        (t(1, 2, 3, 4, 5),),
        FULL,
    ),
    Sample("max_pool2d", lambda x: F.max_pool2d(x, 2, 3), (t(1, 2, 8, 7),), FULL),
    Sample("max_pool3d", lambda x: F.max_pool3d(x, 3, 2, 1, 1), (t(1, 2, 5, 6, 7),), FULL),
    Sample("avg_pool2d", lambda x: F.avg_pool2d(x, 6, 1, 3), (t(1, 2, 8, 7),), FULL),
    Sample("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (4, 3)), (t(2, 8, 6),), FULL),
    Sample("lp_pool1d", lambda x: F.lp_pool1d(x, 3, 2), (t(2, 3, 30),), FULL),
    Sample("lp_pool1d", lambda x: F.lp_pool1d(x, float("inf"), 2), (t(2, 3, 30),), FULL),
    Sample(
        "lp_pool2d",
        lambda x: F.lp_pool2d(x, 2.0, (2, 3), 1, ceil_mode=True),
        (t(1, 2, 7, 8),),
        FULL,
    ),
    Sample("lp_pool3d", lambda x: F.lp_pool3d(x, 2, 2), (t(1, 2, 4, 4, 6),), FULL),
)
