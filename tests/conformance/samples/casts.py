"""Samples of ops/casts.py."""

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.sample import ALL, FLOATS, Sample, t

X = t(3, 1003, low=-100, high=100)


def _of_one(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(x)


SAMPLES = (
    Sample("to", lambda x: (x.to(torch.float16), x.to(torch.bfloat16)), (X,), ALL),
    Sample("to", lambda x: (x.to(dtype=torch.int32), x.to(torch.int8)), (X,), ALL),
    Sample("to", lambda x: (x.to(torch.float32, copy=True), x.to(torch.float32)), (X,), ALL),
    Sample("to", lambda x: x.to(torch.bool), (t(33, special=True),), ALL),
    Sample("to", lambda x: x.to(torch.float64).to(torch.float32) * 2, (t(3, special=True),), ALL),
    Sample("to", lambda x, y: x.to(y), (t(7), t(3, dtype=torch.float64)), ALL),
    Sample("to", lambda x: x.to(torch.float64, non_blocking=True) + 1, (t(),), ALL),
    Sample(
        "to",
        lambda x: x.to(torch.float16, memory_format=torch.channels_last),
        (t(2, 3, 4, 5),),
        FLOATS,
    ),
    Sample("type", lambda x: x.type(torch.float64), (t(7),), ALL),
    Sample("type", lambda x: x.type(torch.DoubleTensor), (t(7),), ALL),
    Sample("type", lambda x: x.type("torch.HalfTensor"), (t(7),), ALL),
    Sample("type_as", lambda x, y: x.type_as(y), (t(7), t(3, dtype=torch.float16)), ALL),
    *(
        Sample(name, _of_one(getattr(torch.Tensor, name)), (t(33, low=-9, high=9),), ALL)
        for name in ("float", "double", "half", "bfloat16", "long", "int", "short", "char", "bool")
    ),
    Sample("byte", lambda x: x.byte(), (t(33, low=0, high=9),), ALL),
    Sample("clone", lambda x: (x.clone(), torch.clone(x) + 1), (t(7),), ALL),
    Sample("detach", lambda x: x.detach() + 1, (t(7),), ALL),
    Sample("contiguous", lambda x: x.transpose(0, 1).contiguous(), (t(3, 7),), ALL),
)
