"""Samples of ops/softmax.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import NUMBERS, Sample, t

SAMPLES = (
    Sample("softmax", lambda x: torch.softmax(x, -1), (t(7, 1003, high=90.0),)),
    Sample("softmax", lambda x: x.softmax(1), (t(3, 10, 6, special=True),)),
    Sample("softmax", lambda x: F.softmax(x, dim=-1, dtype=torch.float32), (t(5, 64),), NUMBERS),
    Sample("softmax", lambda x: torch.softmax(x * float("inf"), 0), (t(5, 1, low=-9, high=-1),)),
    Sample("log_softmax", lambda x: x.log_softmax(dim=-1), (t(7, 1003, high=90.0),)),
    Sample("log_softmax", lambda x: F.log_softmax(x, 0), (t(10, 6, special=True),)),
    Sample("log_softmax", lambda x: torch.log_softmax(x, 1, torch.float64), (t(3, 8),), NUMBERS),
    Sample("softmin", lambda x: F.softmin(x, dim=-1), (t(7, 33),)),
)
