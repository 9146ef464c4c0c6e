"""Integers wrap around where torch's do, also in the middle of a fused kernel."""

from __future__ import annotations

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.conformance.test_gpu import needs_gpu

DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def program(x, y):
    a, b, c = x + y, x - y, x * y
    return a, b, c, 0 - x, x * x - x, (x * 2) // 2, a > x, x * -3 + 7, (x + y) * (x - y), -x


def arguments(dtype: torch.dtype) -> list[torch.Tensor]:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    drawn = [torch.randint(low, high, (5, 37), dtype=dtype) for _ in range(2)]
    for row, tensor in enumerate(drawn):
        tensor[row, :4] = torch.tensor([low, high, 0, 1], dtype=dtype)
    return drawn


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_the_cpu(dtype: torch.dtype) -> None:
    x, y = arguments(dtype)
    for found, expected in zip(bt.jit("cpu")(program)(x, y), program(x, y)):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_gpu(dtype: torch.dtype) -> None:
    x, y = arguments(dtype)
    compiled = bt.jit(gpu.TARGET)(program).lower(x, y).compile()
    for found, expected in zip(gpu.call(compiled, (x, y)), program(x, y)):
        assert torch.equal(found, expected)
