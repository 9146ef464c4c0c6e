"""Reductions of what is turned: columns of what lies in memory, so that nothing is turned there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def total(x):
    return (x.transpose(1, 2).sum(-1),)


def cheap_before(x):
    return ((x.transpose(1, 2) * 2 + 1).exp().sum(-1),)


def norm(x):
    return (x.transpose(1, 2).norm(dim=-1),)


def variance(x):
    return (x.transpose(1, 2).var(-1),)


def two(x):
    return x.transpose(1, 2).mean(-1), (x * 0.5).transpose(1, 2).amax(-1)


def norm_of_channels(x):
    """LayerNorm2d, as ConvNeXt has it, with weights of the channels."""
    w = torch.arange(x.shape[1], device=x.device, dtype=x.dtype) / 8
    return (F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), w, w.cos()).permute(0, 3, 1, 2),)


def norm_and_gelu(x):
    return (F.gelu(norm_of_channels(x)[0]),)


def turned_and_summed(x):
    """Only the sum is of columns: tiles turn what is stored."""
    return x.t().exp(), x.t().sum(-1)


def in_both_orders(x, y):
    return ((x.t() + y).sum(-1),)


def norm_that_stays_turned(x):
    return (F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)),)


def probabilities(x):
    """Of classes that do not come last, by way of those that do."""
    return (x.transpose(1, 2).softmax(-1).transpose(1, 2),)


def logarithms(x):
    y = x.transpose(1, 2) * 2
    return (F.log_softmax(y, -1).transpose(1, 2) + 1, y.logsumexp(-1))


SUMS = [total, cheap_before, norm, variance, two]
NORMS = [norm_of_channels, norm_and_gelu]


@needs_gpu
@pytest.mark.parametrize("fn", SUMS)
@pytest.mark.parametrize("shape", [(2, 300, 33), (4, 64, 128)], ids=str)
def test_sums_are_one_kernel(fn, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert rules(fn, x) <= {"Columns", "ShortColumns"}
    assert len(compiled(fn, x).kernels) == 1
    check(fn, x, within=2e-5)


@needs_gpu
@pytest.mark.parametrize("fn", NORMS)
@pytest.mark.parametrize("channels", [24, 96, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_of_channels_are_one_kernel(fn, channels: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, channels, 7, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert rules(fn, x) == {"ShortColumns"}
    assert len(compiled(fn, x).kernels) == 1
    check(fn, x, within=2e-5 if dtype == torch.float32 else 4e-2)


@needs_gpu
@pytest.mark.parametrize("fn", [probabilities, logarithms])
@pytest.mark.parametrize("shape", [(2, 300, 33), (4, 64, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softmax_is_one_kernel(fn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert rules(fn, x) == {"ShortColumns"}
    assert len(compiled(fn, x).kernels) == 1
    check(fn, x, within=2e-5 if dtype == torch.float32 else 4e-2)


@needs_gpu
def test_what_is_stored_or_read_across_is_turned_in_tiles() -> None:
    x, y = torch.randn(130, 70), torch.randn(70, 130)
    assert rules(turned_and_summed, x) == {"Transposed", "Columns"}
    check(turned_and_summed, x, within=2e-5)
    assert rules(in_both_orders, x, y) == {"Transposed", "Rowwise"}
    check(in_both_orders, x, y, within=2e-5)
    images = torch.randn(2, 96, 7, 9)
    assert "ShortColumns" not in rules(norm_that_stays_turned, images)
    check(norm_that_stays_turned, images, within=2e-5)


@pytest.mark.parametrize("fn", [total, norm, variance, two, norm_of_channels])
def test_on_the_cpu(fn) -> None:
    x = torch.randn((2, 96, 7, 9) if fn in NORMS else (2, 300, 33))
    program = bt.jit("cpu")(fn).lower(x).compile()
    assert len(program.kernels) == 1
    for ours, exact in zip(program(x), fn(x.double())):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
