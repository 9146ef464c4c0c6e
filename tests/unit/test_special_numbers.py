"""What torch makes of infinities and NaN, where TVM takes floats for real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

NUMBERS = torch.tensor([1.0, float("inf"), -float("inf"), float("nan"), 0.0, -2.5])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x * 0": lambda x: x * 0,
    "0 * x": lambda x: 0.0 * x,
    "x - x": lambda x: x - x,
    "x / x": lambda x: x / x,
    "0 / x": lambda x: 0 / x,
    "products": lambda x: x * x - x * x,
    "alpha=0": lambda x: torch.add(x, x, alpha=0),
    "sub, alpha=0": lambda x: torch.sub(x, x, alpha=0),
    "alpha=-1": lambda x: torch.add(x, x, alpha=-1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0),
    "addcdiv": lambda x: torch.addcdiv(x, x, x, value=0),
    "lerp": lambda x: torch.lerp(x, x, 0.25),
    "lerp 0": lambda x: torch.lerp(x, x.new_ones(()), 0),
    "lerp 1": lambda x: torch.lerp(x, x.new_ones(()), 1.0),
    "0 // x": lambda x: 0 // x,
    "where": lambda x: torch.where(x > 0, x - x, x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.0),
    "hypot": lambda x: torch.hypot(x, x),
    "clamp": lambda x: x.clamp(0, 1) * 0,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch(name: str, dtype: torch.dtype) -> None:
    fn, x = FUNCTIONS[name], NUMBERS.to(dtype)
    torch.testing.assert_close(bt.jit("cpu")(fn)(x), fn(x), equal_nan=True)
