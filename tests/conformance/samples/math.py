"""Samples of ops/math.py."""

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.sample import ALL, FLOATS, NUMBERS, Sample, t

X = t(5, 1003, special=True)
POSITIVE = t(5, 1003, low=0, high=9, special=True)
UNIT = t(5, 1003, low=-1, high=1, special=True)


def _of_one(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(x)


SAMPLES = (
    *(
        Sample(name, _of_one(fn), (X,), ALL)
        for name, fn in (
            ("exp", torch.exp),
            ("exp2", torch.exp2),
            ("expm1", torch.expm1),
            ("sin", torch.sin),
            ("cos", torch.cos),
            ("tan", torch.tan),
            ("atan", torch.atan),
            ("sinh", torch.sinh),
            ("cosh", torch.cosh),
            ("tanh", torch.tanh),
            ("asinh", torch.asinh),
            ("erf", torch.erf),
            ("erfc", torch.erfc),
            ("lgamma", torch.lgamma),
            ("sigmoid", torch.sigmoid),
            ("sinc", torch.sinc),
            ("deg2rad", torch.deg2rad),
            ("rad2deg", torch.rad2deg),
        )
    ),
    *(
        Sample(name, _of_one(fn), (POSITIVE,), ALL)
        for name, fn in (
            ("sqrt", torch.sqrt),
            ("rsqrt", torch.rsqrt),
            ("log", torch.log),
            ("log2", torch.log2),
            ("log10", torch.log10),
            ("log1p", torch.log1p),
            ("acosh", torch.acosh),
            ("digamma", torch.digamma),
        )
    ),
    *(
        Sample(name, _of_one(fn), (UNIT,), ALL)
        for name, fn in (
            ("asin", torch.asin),
            ("acos", torch.acos),
            ("atanh", torch.atanh),
            ("logit", torch.logit),
        )
    ),
    # Small arguments, where the naive formulas cancel.
    Sample("expm1", lambda x: torch.expm1(x * 1e-5) * 1e5, (t(1000),)),
    Sample("expm1", lambda x: torch.special.expm1(x), (t(33, low=-200, high=90),)),
    Sample("log1p", lambda x: (x * 1e-5).log1p() * 1e5, (t(1000),)),
    Sample("tanh", lambda x: torch.tanh(x * 1e-5) * 1e5, (t(7),)),
    Sample("erfc", lambda x: torch.special.erfc(x).log(), (t(33, low=-1, high=9),), FLOATS[:2]),
    Sample("sigmoid", lambda x: torch.special.expit(x * 40), (t(33),)),
    Sample("logit", lambda x: torch.logit(x, eps=0.25), (UNIT,)),
    Sample("atan2", lambda x, y: torch.atan2(x, y), (X, t(1003, special=True)), ALL),
    Sample("xlogy", lambda x, y: torch.xlogy(x, y), (X, t(1003, special=True)), ALL),
    Sample("xlogy", lambda x: torch.special.xlogy(x, 0), (t(33, special=True),)),
    Sample("xlogy", lambda x: torch.special.xlogy(0, x), (t(33, special=True),)),
    Sample("xlog1py", lambda x, y: torch.special.xlog1py(x, y), (X, t(1003, special=True)), ALL),
    Sample("logaddexp", lambda x, y: torch.logaddexp(x, y), (X, t(1003, special=True))),
    Sample("logaddexp", lambda x: torch.logaddexp(x, x), (t(33, special=True),)),
    Sample("logaddexp2", lambda x, y: x.logaddexp2(y), (X, t(1003, special=True))),
    Sample("hypot", lambda x, y: torch.hypot(x, y), (X, t(1003, special=True))),
    Sample("nextafter", lambda x, y: torch.nextafter(x, y), (X, t(1003, special=True)), FLOATS),
    Sample("floor", lambda x: x.floor(), (X,), NUMBERS),
    Sample("ceil", lambda x: torch.ceil(x), (X,), NUMBERS),
    Sample("trunc", lambda x: torch.fix(x), (X,), NUMBERS),
    Sample("round", lambda x: torch.round(x * 2), (X,), NUMBERS),
    Sample("round", lambda x: torch.round(x, decimals=2), (X,), FLOATS),
    Sample("round", lambda x: torch.special.round(x * 50, decimals=-1), (t(1003),), FLOATS),
    Sample("frac", lambda x: x.frac(), (X,)),
    Sample("exp", lambda x: torch.exp(x.log()), (t(low=1),), NUMBERS),
)
