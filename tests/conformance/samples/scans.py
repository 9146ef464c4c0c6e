"""Samples of ops/scans.py."""

import torch

from tests.conformance.sample import ALL, INTEGERS, NUMBERS, Sample, t

OTHERS = tuple(dtype for dtype in ALL if dtype != torch.float32)

SAMPLES = (
    Sample("cumsum", lambda x: x.cumsum(-1), (t(7, 1003),), OTHERS),
    Sample("cumsum", lambda x: x.cumsum(-1), (t(7, 1003),), (torch.float32,), gpu=False),
    # A GPU adds up some thousand numbers of float32 in float32: a few roundings of numbers of 150.
    Sample("cumsum", lambda x: x.cumsum(-1), (t(7, 1003),), (torch.float32,), atol=5e-5),
    Sample("cumsum", lambda x: torch.cumsum(x, dim=0), (t(33, 5, special=True),), ALL),
    Sample("cumsum", lambda x: x.cumsum(1, dtype=torch.float64), (t(3, 7, 4),), ALL),
    Sample("cumsum", lambda x: x.cumsum(0, dtype=torch.int8), (t(100, high=9.0),), INTEGERS),
    Sample("cumsum", lambda x: (x * 2).cumsum(axis=-1) + 1, (t(3, 1),)),
    Sample("cumprod", lambda x: x.cumprod(-1), (t(5, 12, low=-2.0, high=2.0),), ALL),
    Sample("cumprod", lambda x: torch.cumprod(x, 0), (t(9, 7, special=True),)),
    Sample("cumprod", lambda x: (x * (x > -1)).cumprod(0), (t(6, 20),)),  # some zeros
    Sample("logcumsumexp", lambda x: x.logcumsumexp(-1), (t(7, 100, high=90.0),)),
    Sample("logcumsumexp", lambda x: torch.logcumsumexp(x, 0), (t(9, 7, special=True),)),
    Sample("cummax", lambda x: x.cummax(-1), (t(7, 64, special=True),), ALL),
    Sample(
        "cummax",
        lambda x: torch.cummax(x, dim=0).values,
        (
            t(
                1000,
            ),
        ),
        NUMBERS,
    ),
    Sample("cummax", lambda x: (x * (x > 0)).cummax(0), (t(9, 5),)),  # ties
    Sample("cummin", lambda x: x.cummin(0), (t(64, 7, special=True),), ALL),
    Sample("cummin", lambda x: torch.cummin(x, 1), (t(2, 31, 3),), ALL),
    Sample("diff", lambda x: x.diff(), (t(7, 33),), ALL),
    Sample("diff", lambda x: torch.diff(x, n=2, dim=0), (t(9, 5, special=True),), NUMBERS),
    Sample("diff", lambda x, y: torch.diff(x, prepend=y, append=y), (t(3, 5), t(3, 2)), ALL),
)
