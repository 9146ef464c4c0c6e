"""Long rows that start at any address: numbers that lie apart are loaded several at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def softmax(x):
    return torch.softmax(x * 2, -1)


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def sums(x):
    return x.sum(-1), (x * x).mean(-1), x.amax(-1)


def interleaved(x):
    return (x[..., ::2] * x[..., 1::2]).sum(-1)


def joined(x):
    return torch.cat((x[..., :1001], x), -1).sum(-1)


FUNCTIONS = [softmax, layer_norm, sums, interleaved, joined]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [70001, 131075, 99990])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values(fn: Callable[..., torch.Tensor], columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x[..., : columns - columns % 2] if fn is interleaved else x
    x = x.contiguous()
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    found, exact = gpu.call(compiled, (x,)), fn(x.double())
    pairs = zip(found, exact) if isinstance(found, tuple) else [(found, exact)]
    within = 2e-5 if dtype == torch.float32 else 0.02
    for one, other in pairs:
        scale = within * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=within, atol=scale)


@pytest.mark.parametrize("fn", [softmax, layer_norm], ids=lambda fn: fn.__name__)
def test_four_numbers_are_on_the_way_at_once(fn: Callable[..., torch.Tensor]) -> None:
    x = torch.empty(7, 1000003, device="meta")
    source = bt.jit(gpu.TARGET)(fn).lower(x).compile().source()
    assert source.count("x_vector[lane] = x[") == 2  # in as many kernels
    assert source.count("lane * 256 + thread]") >= 2
