"""Samples of ops/convolution.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import FLOATS, Sample, t

FULL = (torch.float32, torch.float64)
WITH_INTEGERS = (*FLOATS, torch.int64, torch.int32)

SAMPLES = (
    Sample("conv1d", lambda *xs: F.conv1d(*xs), (t(2, 3, 31), t(5, 3, 4), t(5)), WITH_INTEGERS),
    Sample(
        "conv1d",
        lambda x, w: F.conv1d(x, w, stride=2, padding=3, dilation=2, groups=2),
        (t(4, 33), t(6, 2, 3)),
    ),
    Sample("conv1d", lambda x, w: F.conv1d(x, w, padding="same"), (t(1, 1, 10), t(1, 1, 4))),
    Sample(
        "conv2d", lambda *xs: F.conv2d(*xs), (t(2, 3, 9, 10), t(4, 3, 3, 3), t(4)), WITH_INTEGERS
    ),
    Sample(
        "conv2d",
        lambda x, w, b: torch.relu(F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2))),
        (t(1, 3, 11, 7), t(5, 3, 3, 5), t(5)),
    ),
    Sample(
        "conv2d",
        lambda x, w: F.conv2d(x, w, padding=1, groups=6),
        (t(2, 6, 8, 8), t(6, 1, 3, 3)),
    ),
    Sample(
        "conv2d",
        lambda x, w: F.conv2d(x, w, padding="same", dilation=(2, 1)),
        (t(3, 8, 7), t(2, 3, 2, 4)),
    ),
    Sample("conv2d", lambda x, w: F.conv2d(x, w, padding="valid"), (t(1, 8, 5, 5), t(7, 8, 1, 1))),
    Sample(
        "conv3d",
        lambda x, w, b: F.conv3d(x, w, b, padding=1, stride=(1, 2, 1)),
        (t(1, 2, 4, 5, 6), t(3, 2, 3, 3, 2), t(3)),
    ),
    Sample("conv3d", lambda *xs: F.conv3d(*xs), (t(2, 4, 5, 4), t(1, 2, 2, 1, 3)), FULL),
    Sample(
        "conv_transpose1d", lambda *xs: F.conv_transpose1d(*xs), (t(2, 3, 10), t(3, 4, 5), t(4))
    ),
    Sample(
        "conv_transpose1d",
        lambda x, w: F.conv_transpose1d(
            x, w, stride=4, padding=2, output_padding=1, groups=2, dilation=2
        ),
        (t(4, 10), t(4, 3, 5)),
    ),
    Sample(
        "conv_transpose2d",
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        (t(1, 3, 5, 6), t(3, 2, 3, 3), t(2)),
    ),
    Sample(
        "conv_transpose2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=(3, 2), dilation=(2, 3), groups=2),
        (t(1, 4, 5, 3), t(4, 3, 3, 4)),
    ),
    Sample(
        "conv_transpose2d", lambda *xs: F.conv_transpose2d(*xs), (t(2, 5, 4), t(2, 3, 1, 2)), FULL
    ),
    Sample(
        "conv_transpose3d",
        lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2, padding=(1, 0, 1)),
        (t(1, 2, 3, 4, 3), t(2, 3, 3, 2, 3), t(3)),
        FULL,
    ),
)
