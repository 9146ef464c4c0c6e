"""Samples of ops/interpolation.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import FLOATS, Sample, t

FULL = (torch.float32, torch.float64)
UINT8 = (torch.uint8,)

SAMPLES = (
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=2),
        (t(1, 3, 7, 5, special=True),),
        FLOATS + UINT8,
    ),
    Sample("interpolate", lambda x: F.interpolate(x, size=31), (t(2, 3, 100),)),
    Sample("interpolate", lambda x: F.interpolate(x, scale_factor=(0.7, 2.3)), (t(1, 2, 13, 9),)),
    Sample("interpolate", lambda x: F.interpolate(x, size=(3, 4, 9)), (t(1, 2, 4, 3, 5),)),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, size=(5, 14), mode="nearest-exact"),
        (t(1, 2, 13, 9),),
        FLOATS + UINT8,
    ),
    Sample("interpolate", lambda x: F.interpolate(x, size=33, mode="linear"), (t(2, 3, 10),)),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (t(2, 3, 7, 8),),
    ),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, size=(1, 13), mode="bilinear", align_corners=True),
        (t(1, 3, 7, 8),),
    ),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        (t(1, 3, 7, 8),),
    ),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bicubic"),
        (t(1, 2, 7, 8),),
    ),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, size=(15, 3), mode="bicubic", align_corners=True),
        (t(1, 2, 7, 8),),
    ),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"),
        (t(1, 2, 3, 4, 5),),
    ),
    Sample("interpolate", lambda x: F.interpolate(x, size=(3, 9), mode="area"), (t(1, 2, 7, 5),)),
    Sample(
        "interpolate",
        lambda x: F.interpolate(x, size=(5, 3), mode="bilinear", antialias=True),
        (t(1, 2, 9, 8),),
        FULL,
        gpu=False,  # through torch
    ),
    Sample("upsample", lambda x: F.upsample(x, scale_factor=2, mode="linear"), (t(1, 2, 7),), FULL),
    Sample("upsample_nearest", lambda x: F.upsample_nearest(x, size=9), (t(1, 2, 7, 7),), FULL),
    Sample(
        "upsample_bilinear",
        lambda x: F.upsample_bilinear(x, scale_factor=3),
        (t(1, 2, 4, 5),),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (t(2, 3, 7, 8), t(2, 5, 4, 2, low=-1.3, high=1.3, special=True)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, "nearest", "border", align_corners=True),
        (t(1, 3, 7, 8), t(1, 5, 4, 2, low=-1.3, high=1.3)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
        (t(1, 3, 7, 8), t(1, 5, 4, 2, low=-5, high=5)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=True),
        (t(1, 2, 3, 4, 5), t(1, 2, 3, 4, 3, low=-2, high=2)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, "nearest", align_corners=True),
        (t(1, 2, 3, 4, 5), t(1, 2, 3, 4, 3, low=-2, high=2, special=True)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
        (t(1, 2, 3, 4, 5), t(1, 2, 3, 4, 3, low=-2, high=2, special=True)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, "nearest", align_corners=False),
        (t(1, 2, 4, 5), t(1, 3, 4, 2, low=-2, high=2, special=True)),
        FULL,
    ),
    Sample(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, "bilinear", "border", align_corners=False),
        (t(1, 2, 4, 5), t(1, 3, 4, 2, low=-2, high=2, special=True)),
        FULL,
    ),
)
