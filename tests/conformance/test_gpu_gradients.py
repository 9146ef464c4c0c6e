"""Gradients on the GPU target, against torch's: on the emulator, or on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def gelu_bias(x, b):
    return F.gelu(x + b)


def swiglu(a, b):
    return F.silu(a) * b


def softmax(x):
    return torch.softmax(x, -1) * 2


def rms_norm(x, w):
    return F.rms_norm(x, x.shape[-1:], w)


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def norm_by_hand(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def cross_entropy(x, target):
    return F.cross_entropy(x, target, ignore_index=1)


def columns(x):
    return torch.logsumexp(x, 0) + x.var(0)


def scanned(x):
    return x.cumsum(-1) * x.cummax(-1).values


def picked(x, index):
    return x[index] * 2 + x.amax(0)


ROW, LONG = 1000, 4097
CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (gelu_bias, ((7, ROW), (ROW,))),
    (gelu_bias, ((64, 1024), (1024,))),
    (swiglu, ((33, LONG), (33, LONG))),
    (softmax, ((7, ROW),)),
    (softmax, ((3, 70001),)),
    (rms_norm, ((64, 1024), (1024,))),
    (rms_norm, ((9, 33), (33,))),
    (layer_norm, ((64, 1024), (1024,), (1024,))),
    (layer_norm, ((5, LONG), (LONG,), (LONG,))),
    (norm_by_hand, ((16, ROW), (ROW,))),
    (cross_entropy, ((64, ROW), torch.arange(64) % 5)),
    (columns, ((33, ROW),)),
    (scanned, ((5, ROW),)),
    (picked, ((40, 33), torch.tensor([3, 3, 0, 39]))),
)


def _drawn(part: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part
    return torch.randn(part).to(dtype).requires_grad_()


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("fn", "parts"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_matches_torch(fn: Callable[..., Any], parts: tuple[Any, ...], dtype: torch.dtype) -> None:
    arguments = tuple(_drawn(part, dtype) for part in parts)
    wide = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in arguments]
    exact = fn(*wide)
    grad = torch.rand_like(exact).to(dtype)
    inputs = [x for x in wide if x.requires_grad]
    expected = torch.autograd.grad(exact, inputs, grad.double())
    compiled = bt.jit(gpu.TARGET)(fn).lower(*arguments).compile()
    assert compiled.fallbacks == compiled.backward.fallbacks == ()
    for order, seed in (("fixed", 0), ("shuffled", 1)):
        with emulator.thread_order(order, seed=seed):
            found = gpu.gradients(compiled, arguments, {0: grad})
        for ours, theirs in zip(found, expected, strict=True):
            bound = 3e-5 if dtype == torch.float32 else 0.04
            scale = max(1.0, theirs.abs().max().item())
            torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=bound * scale)
