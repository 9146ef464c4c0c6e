"""Exponentials and quotients for what is rounded to 16 bits, on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)
HALVES = [torch.float16, torch.bfloat16]


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def softly(x):
    return x.exp(), F.silu(x), x.sigmoid()


def of_another(x):
    return (x.flip(-1).float() / (1 + torch.exp(x.float()))).to(x.dtype)


def gated(x):
    y = x.flip(0)
    return F.silu(x) * y, torch.sigmoid(x) * y, (1e30 / (1 + torch.exp(-x.float()))).to(x.dtype)


def in_float32(x):
    wide = x.float()
    return torch.exp(wide), wide / (1 + torch.exp(-wide)), wide.sigmoid()


def less_one(x):
    return (torch.exp(x.float()) - 1).to(x.dtype), (1 - torch.exp(x.float())).to(x.dtype)


def gelu(x):
    return F.gelu(x), F.gelu(x) * x.flip(0)


def erfs(x):
    return (x.float().erf() * 0.5).to(x.dtype), (1 - x.float().erf()).to(x.dtype)


FUNCTIONS = [quick_gelu, softly, gated, of_another, in_float32, less_one]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Of all sizes that a dtype has, of both signs, and what are no numbers."""
    small = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 3
    most = torch.finfo(dtype).max
    large = torch.logspace(-8, torch.tensor(most).log10().item(), 2000)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 87.5, 88.5, -87.5, -88.5])
    return torch.cat([torch.cat([small, large, -large]).clamp(-most, most), odd]).to(dtype)


@needs_gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values(fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    x = numbers(dtype)
    found = gpu.call(bt.jit(gpu.TARGET)(fn).lower(x).compile(), (x,))
    within, least = 2 * torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    torch.testing.assert_close(found, fn(x), rtol=within, atol=least, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_is_rounded_takes_the_hardwares(dtype: torch.dtype) -> None:
    source = source_of(softly, dtype)
    assert source.count("= (half)__expf(" if dtype == torch.float16 else "bfloat16)__expf(") >= 1
    kernel = source[source.index("__global__") :]
    assert kernel.count("fast_exp(") == kernel.count("fast_reciprocal(") >= 2
    assert " expf(" not in source


@pytest.mark.parametrize("fn", [in_float32, less_one], ids=lambda fn: fn.__name__)
def test_what_needs_more_digits_does_not(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    source = source_of(fn, torch.bfloat16)
    assert "expf(" in source
    assert "__expf(" not in source
    assert "fast_" not in source


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gelu_takes_a_polynomial(dtype: torch.dtype) -> None:
    kernel = source_of(gelu, dtype).partition("__global__")[2]
    assert "one_plus_erf(" in kernel
    assert "erff(" not in kernel
    assert "erff(" in source_of(erfs, dtype)
    assert "erff(" in source_of(gelu, torch.float32)


@needs_gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_values_of_gelu(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    given = torch.where(x.isneginf(), 0.0, x)  # times 0, which is no number
    found = gpu.call(bt.jit(gpu.TARGET)(gelu).lower(given).compile(), (given,))
    within, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    wide = given.double()
    exact = wide * torch.special.erfc(-wide / 2**0.5) / 2
    odd = ~exact.isfinite()
    error = (found[0].double() - exact).abs() - 2.1e-7 * wide.abs() / 2
    assert torch.all((error <= within * (exact.abs() + least)) | odd)
    torch.testing.assert_close(found[0][odd].double(), exact[odd], equal_nan=True)
    torch.testing.assert_close(found[1], found[0] * given.flip(0), equal_nan=True)


def gelu_of_tanh(x):
    return F.gelu(x, approximate="tanh")


@needs_gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_values_of_gelu_of_tanh(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    x = x[x.isfinite() & (x.abs() < 1e4)]
    assert "tanh(" not in source_of(gelu_of_tanh, dtype).partition("__global__")[2]
    found = gpu.call(bt.jit(gpu.TARGET)(gelu_of_tanh).lower(x).compile(), (x,)).double()
    exact = F.gelu(x.double(), approximate="tanh")
    within, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    torch.testing.assert_close(found, exact, rtol=within, atol=within * least + 1e-15)


@needs_gpu
def test_one_plus_erf_has_the_digits_of_halves() -> None:
    x = torch.linspace(-13.0, 13.0, 1 << 15)
    fn = bt.jit(gpu.TARGET)(lambda x: (0.5 * (1 + x.erf())).to(torch.float16))
    found = gpu.call(fn.lower(x).compile(), (x,)).double()
    exact = torch.special.erfc(-x.double()) / 2
    torch.testing.assert_close(found, exact, rtol=2**-11 + 1e-6, atol=2.0**-25 + 2.1e-7)


def source_of(fn: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> str:
    x = torch.empty(4096, dtype=dtype, device="meta")
    return bt.jit(gpu.TARGET)(fn).lower(x).compile().source()


def several(x):
    y = F.layer_norm(x, (x.shape[-1],)).clamp(-1, 1)
    return y, x.amax(-1), x.argmax(-1), x.cumsum(-1), x.t() + 1, torch.maximum(x, -x).sum(0), x > 0


@needs_gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_gpus_without_arithmetic_of_bfloat16(dtype: torch.dtype) -> None:
    x = torch.randn(64, 1024).to(dtype)
    compiled = bt.jit(bt.Target("cuda", "sm_75"))(several).lower(x).compile()
    found, expected = gpu.call(compiled, (x,)), several(x.double())
    for one, other in zip(found, expected):
        within = 2e-2 if one.is_floating_point() else 0.0
        torch.testing.assert_close(
            one.to(other.dtype), other, rtol=within, atol=within * other.double().abs().max().item()
        )
    if cuda.has_compiler():
        assert all(launch.spilled == 0 for launch in compiled.launches)
        assert cuda.cubin(compiled.source("cuda", full=True), "sm_75")
