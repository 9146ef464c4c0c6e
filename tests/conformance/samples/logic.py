"""Samples of ops/logic.py."""

import operator
from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.sample import ALL, BOOL, FLOATS, INTEGERS, NUMBERS, Sample, t

X = t(5, 1003, special=True)
Y = t(1003, special=True)
COUNT = t(33, low=-3, high=70)


def _of_one(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(x)


def _of_two(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: fn(x, y)


def _with_numbers(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (fn(x, 0.1), fn(x, 1))


SAMPLES = (
    *(
        Sample(name, _of_two(getattr(operator, name)), (X, Y), ALL)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    *(
        Sample(name, _with_numbers(getattr(torch, name)), (Y,), ALL)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    Sample("eq", lambda x: (x == x, x * 1.0 == x), (Y,), ALL),
    Sample("ne", lambda x: (x != x, x * 1.0 != x, ~(x == 1)), (Y,), ALL),
    Sample("lt", lambda x, s: (x < s, s < x, ~(x < 1)), (Y, 0.1), ALL),
    Sample("le", lambda x: (x <= 1, ~(x <= 1)), (Y,), NUMBERS),
    Sample("gt", lambda x: x > -1, (t(33),), INTEGERS),
    Sample("ge", lambda x, y: x >= y, (t(7), t(3, 1, dtype=torch.int8)), ALL),
    *(
        Sample(name, _of_two(getattr(torch, name)), (X, Y), ALL)
        for name in ("logical_and", "logical_or", "logical_xor")
    ),
    Sample("logical_and", lambda x, y: x.logical_and(y > 0), (t(7), t(3, 1)), ALL),
    Sample("logical_not", lambda x: torch.logical_not(x), (X,), ALL),
    *(
        Sample(name, _of_two(fn), (t(7), t(3, 7)), INTEGERS + BOOL)
        for name, fn in (
            ("bitwise_and", operator.and_),
            ("bitwise_or", operator.or_),
            ("bitwise_xor", operator.xor),
        )
    ),
    Sample("bitwise_and", lambda x: torch.bitwise_and(x, 6), (t(7, high=100),), INTEGERS),
    Sample("bitwise_not", lambda x: ~x, (t(1003),), INTEGERS + BOOL),
    Sample("bitwise_left_shift", lambda x, n: x << n, (t(33), COUNT), INTEGERS),
    Sample("bitwise_left_shift", lambda x: (x << 2, x << 70, 3 << x), (t(33),), INTEGERS),
    Sample("bitwise_right_shift", lambda x, n: x >> n, (t(33, low=-99, high=99), COUNT), INTEGERS),
    Sample("bitwise_right_shift", lambda x: torch.bitwise_right_shift(x, 1), (t(7),), INTEGERS),
    *(
        Sample(name, _of_one(getattr(torch, name)), (X,), ALL)
        for name in ("isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit")
    ),
    Sample(
        "isclose",
        lambda x, y: torch.isclose(x, y, rtol=0.5, atol=0.1),
        (X, Y),
        # Without bfloat16: TVM keeps float32 between fused operators, so borderline cases differ.
        (*FLOATS[:3], *INTEGERS, *BOOL),
    ),
    Sample("isclose", lambda x: torch.isclose(x, x), (t(33, special=True),), FLOATS),
    Sample("isclose", lambda x: torch.isclose(x, x, equal_nan=True), (t(33, special=True),)),
    Sample("isclose", lambda x, y: torch.isclose(x, y, 0, 0), (t(33), t(33)), INTEGERS),
)
