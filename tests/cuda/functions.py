"""Well-known functions, whose CUDA source is kept beside this file."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def add(x, y):
    return x + y


def gelu_bias(x, b):
    y = x + b
    return torch.sigmoid(1.702 * y) * y


def swiglu(gate, x):
    return F.silu(gate) * x


def softmax(x):
    return torch.softmax(x, -1)


def rms_norm(x, w):
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return x * scale * w


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def cross_entropy(x, labels):
    return F.cross_entropy(x, labels, reduction="none")


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def total(x):
    return x.sum()


def transpose(x):
    return x.T.contiguous()


def returns(rewards, discount: float):
    out = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        running = rewards[t] + discount * running
        out[t] = running
    return out


def state_space(x, dt, a, b, c):
    h = torch.zeros_like(a)
    ys = torch.empty_like(x)
    for t in range(x.shape[0]):
        h = torch.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        ys[t] = (h * c[t]).sum(-1)
    return ys


def arguments() -> dict[str, tuple[torch.Tensor, ...]]:
    """What each function is compiled for."""
    large, width = torch.randn(64, 1024), torch.randn(1024)
    half = large.half()
    return {
        "add": (large, large),
        "gelu_bias": (large, width),
        "swiglu": (half, half),
        "softmax": (torch.randn(64, 4096),),
        "rms_norm": (half, width.half()),
        "layer_norm": (large, width, width),
        "cross_entropy": (large, torch.arange(64)),
        "rope": (torch.randn(64, 128), torch.randn(64, 64), torch.randn(64, 64)),
        "total": (torch.randn(512, 1024),),
        "transpose": (torch.randn(100, 70),),
        "returns": (torch.randn(100, 70), 0.9),
        "state_space": (
            *(torch.randn(40, 64), torch.rand(40, 64), -torch.rand(64, 16)),
            *(torch.randn(40, 16), torch.randn(40, 16)),
        ),
    }
