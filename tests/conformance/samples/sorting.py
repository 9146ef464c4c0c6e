"""Samples of ops/sorting.py, all through torch."""

import torch

from tests.conformance.sample import FLOATS, Sample, t

SOME = (*FLOATS, torch.int64)

SAMPLES = (
    Sample("sort", lambda x: torch.sort(x, dim=0), (t(1003, special=True),), SOME, gpu=False),
    Sample("argsort", lambda x: x.argsort(descending=True, stable=True), (t(7, 31),), gpu=False),
    Sample("msort", lambda x: torch.msort(x + 1), (t(31, 3),), SOME, gpu=False),
    Sample("topk", lambda x: x.topk(3, dim=-1)[0] * 2, (t(7, 100),), SOME, gpu=False),
    Sample("sort", lambda x: x.sort(1, descending=True)[0], (t(3, 9),), FLOATS, gpu=False),
    Sample("topk", lambda x: torch.topk(x, 2, 0, False), (t(7, 3),), FLOATS, gpu=False),
    Sample("kthvalue", lambda x: x.kthvalue(3, 0, True), (t(7, 3),), FLOATS, gpu=False),
    Sample("kthvalue", lambda x: torch.kthvalue(x, 2)[0], (t(3, 10),), SOME, gpu=False),
)
