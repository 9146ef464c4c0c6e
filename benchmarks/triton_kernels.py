"""Functions of benchmarks/gpu.py as a person writes them in Triton."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

EPS = 1e-6

LONGEST = 65536
"""Elements of a row, which a block holds as a whole."""


@triton.jit
def _softmax(out, x, columns, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, width)
    inside = places < columns
    values = tl.load(x + row * columns + places, mask=inside, other=-float("inf")).to(tl.float32)
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + places, values / tl.sum(values, 0), mask=inside)


@triton.jit
def _layer_norm(out, x, w, b, columns, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, width)
    inside = places < columns
    values = tl.load(x + row * columns + places, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    apart = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / columns + 1e-5)
    weight = tl.load(w + places, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(b + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + places, apart * scale * weight + bias, mask=inside)


@triton.jit
def _rms_norm(out, x, w, columns, eps, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, width)
    inside = places < columns
    values = tl.load(x + row * columns + places, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / columns + eps)
    weight = tl.load(w + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + places, values * scale * weight, mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    width = triton.next_power_of_2(x.shape[1])
    _softmax[(x.shape[0],)](out, x, x.shape[1], width, num_warps=min(32, max(4, width // 1024)))
    return out


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    width = triton.next_power_of_2(x.shape[1])
    warps = min(32, max(4, width // 1024))
    _layer_norm[(x.shape[0],)](out, x, w, b, x.shape[1], width, num_warps=warps)
    return out


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    width = triton.next_power_of_2(x.shape[1])
    warps = min(32, max(4, width // 1024))
    _rms_norm[(x.shape[0],)](out, x, w, x.shape[1], EPS, width, num_warps=warps)
    return out


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
}
"""By the function that they compute."""
