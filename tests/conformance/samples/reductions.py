"""Samples of ops/reductions.py."""

import math

import torch

from tests.conformance.sample import ALL, FLOATS, INTEGERS, NUMBERS, Sample, t

SAMPLES = (
    Sample("sum", lambda x: x.sum(), (t(7, 1003),), ALL),
    Sample("sum", lambda x: x.sum(-1, keepdim=True), (t(3, 7, 64),), ALL),
    Sample("sum", lambda x: torch.sum(x, dim=(0, 2)), (t(3, 7, 10, special=True),)),
    Sample("sum", lambda x: x.sum(0, dtype=torch.float64), (t(5, 1),), ALL),
    Sample("sum", lambda x: x.sum(0, dtype=torch.int8), (t(300, 3, high=9.0),), INTEGERS),
    Sample("sum", lambda x: torch.sum(input=x, axis=1, keepdims=True), (t(3, 5),)),
    Sample("sum", lambda x: x[0].sum(0), (t(1),), gpu=False),  # no dimension at all
    Sample("mean", lambda x: x.mean(), (t(7, 1003, low=0.0),)),
    Sample("mean", lambda x: torch.mean(x, (0, -1), True), (t(3, 7, 64, special=True),)),
    Sample("mean", lambda x: x.mean(0, dtype=torch.float32), (t(31, 8),), ALL),
    Sample("nansum", lambda x: x.nansum(-1), (t(5, 33, special=True),), ALL),
    Sample("nansum", lambda x: torch.nansum(x, dtype=torch.float64), (t(5, 33, special=True),)),
    Sample("nanmean", lambda x: x.nanmean(1, keepdim=True), (t(5, 33, special=True),)),
    Sample("nanmean", lambda x: torch.nanmean(x), (t(40),)),
    Sample("prod", lambda x: x.prod(-1), (t(3, 7, low=0.5, high=1.5),), NUMBERS),
    Sample("prod", lambda x: torch.prod(x), (t(5, 8, special=True),), ALL),
    Sample("prod", lambda x: x.prod(0, True, dtype=torch.int64), (t(4, 3),), INTEGERS),
    Sample("prod", lambda x: (x * (x > -1)).prod(-1), (t(20, 4),)),  # some zeros
    Sample("count_nonzero", lambda x: x.count_nonzero(), (t(5, 100, special=True),), ALL),
    Sample("count_nonzero", lambda x: torch.count_nonzero(x, (0, 1)), (t(5, 7, 3),), ALL),
    Sample("trace", lambda x: x.trace(), (t(7, 5),), NUMBERS),
    Sample("var", lambda x: x.var(), (t(7, 1003),)),
    Sample(
        "var", lambda x: torch.var(x, -1, correction=0), (t(3, 5, 64, low=1000.0, high=1001.0),)
    ),
    Sample("var", lambda x: x.var((0, 1), False, True), (t(3, 5, 7),)),
    Sample("var", lambda x: x.var(1), (t(4, 1),)),
    Sample("std", lambda x: x.std(False), (t(1000, special=True),)),
    Sample("std", lambda x: torch.std(x, 0, correction=2.5, keepdim=True), (t(9, 16),)),
    Sample("std", lambda x: (x > 5).to(x.dtype).std(0) * x.std(), (t(5, 4),)),  # all equal
    Sample("std", lambda x: (x * 0).std(0, keepdim=True) + x, (t(5, 4),)),
    Sample("var_mean", lambda x: torch.var_mean(x, (0, 1)), (t(8, 3, 5),)),
    Sample("var_mean", lambda x: torch.var_mean(x, -1, keepdim=True), (t(8, 100),)),
    Sample("std_mean", lambda x: torch.std_mean(x, unbiased=False), (t(8, 100),)),
    Sample("amax", lambda x: x.amax(), (t(7, 1003),), ALL),
    Sample("amax", lambda x: torch.amax(x, (0, -1), True), (t(3, 7, 9, special=True),), ALL),
    Sample("amax", lambda x: x.amax(-1), (t(5, 12, low=-9.0, high=-1.0),), FLOATS + INTEGERS[:-1]),
    Sample("amax", lambda x: (x * math.inf).amax(-1), (t(5, 12, low=-9.0, high=-1.0),)),  # -inf
    Sample("amax", lambda x: (x * (x > 0)).amax((0, 1)), (t(2, 3, 5, high=0.5),)),  # ties
    Sample("amin", lambda x: x.amin(0), (t(100, 5, special=True),), ALL),
    Sample("amin", lambda x: (x * math.inf).amin(-1), (t(5, 12, low=1.0),)),  # inf
    Sample("aminmax", lambda x: torch.aminmax(x), (t(5, 64),), ALL),
    Sample("aminmax", lambda x: x.aminmax(dim=1, keepdim=True), (t(5, 64, special=True),), ALL),
    Sample("argmax", lambda x: x.argmax(), (t(7, 1003),), NUMBERS),
    Sample(
        "argmax", lambda x: torch.argmax(x, 0, keepdim=True), (t(33, 6, special=True),), NUMBERS
    ),
    Sample(
        "argmax", lambda x: (x * 0).argmax(-1), (t(3, 16),), NUMBERS
    ),  # all tie, -0.0 among them
    Sample("argmin", lambda x: x.argmin(-1), (t(3, 4, 65),), NUMBERS),
    Sample("argmin", lambda x: x.argmin(), (t(40, special=True),), NUMBERS),
    Sample(
        "max",
        lambda x: x.max(),
        (
            t(
                1000,
            ),
        ),
        ALL,
    ),
    Sample("max", lambda x: torch.max(x, -1), (t(7, 64, special=True),), ALL),
    Sample("max", lambda x: x.max(dim=0, keepdim=True).indices, (t(64, 7),), ALL),
    Sample("max", lambda x, y: torch.max(x, y), (t(7, 64, special=True), t(64)), ALL),
    Sample("min", lambda x: x.min(), (t(1000, special=True),), ALL),
    Sample("min", lambda x: torch.min(x, 1).values, (t(7, 64),), ALL),
    Sample("min", lambda x: (x * (x > 0)).min(0), (t(9, 5),), NUMBERS),  # ties
    Sample("min", lambda x: (x * (x > 0)).min(), (t(9, 5),), NUMBERS),
    Sample("min", lambda x, y: x.min(other=y), (t(7, 1), t(64, special=True)), ALL),
    Sample("any", lambda x: x.any(), (t(5, 7, special=True),), ALL),
    Sample("any", lambda x: torch.any(x, -1, keepdim=True), (t(9, 3),), ALL),
    Sample("all", lambda x: x.all(0), (t(9, 3),), ALL),
    Sample("all", lambda x: torch.all(x, (0, 2)), (t(2, 7, 3, low=0.0),), ALL),
    Sample("logsumexp", lambda x: x.logsumexp(-1), (t(5, 100, high=90.0),), NUMBERS),
    Sample("logsumexp", lambda x: torch.logsumexp(x, (0, 1), True), (t(5, 7, 3, special=True),)),
    Sample("logsumexp", lambda x: (x * math.inf).logsumexp(0), (t(5, low=-9.0, high=-1.0),)),
    Sample("median", lambda x: x.median(-1), (t(5, 9),), NUMBERS, gpu=False),  # runs through torch
    Sample("median", lambda x: (x * (x > 0)).median(), (t(5, 9),), gpu=False),  # ties
    Sample("nanmedian", lambda x: x.nanmedian(), (t(9),), gpu=False),
    Sample("nanmedian", lambda x: x.nanmedian(0, keepdim=True), (t(9, 2),), gpu=False),
    Sample("mode", lambda x: x.mode(-1), (t(5, 9),), ALL, gpu=False),
    Sample("quantile", lambda x: x.quantile(0.3), (t(9),), (torch.float32,), gpu=False),
    Sample("nanquantile", lambda x: x.nanquantile(0.3), (t(9),), (torch.float32,), gpu=False),
)
