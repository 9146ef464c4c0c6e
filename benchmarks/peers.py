"""The same functions as other compilers take them: JAX, Numba and Warp, where installed."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import EPS, HEADS, Case

Way = Callable[[], Any]

# Numba multiplies matrices by OpenBLAS, whose threads keep a core for 30 ms after they are done,
# whoever's turn it is then.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 ticks: less than a millisecond


def ways(case: Case, arguments: tuple[torch.Tensor, ...]) -> dict[str, Way]:
    """How each installed peer computes a case, for those that can."""
    found = {}
    for name, peer in (("jax", _jax), ("numba", _numba), ("warp", _warp)):
        if importlib.util.find_spec(name) is not None:
            way = peer(case, arguments)
            if way is not None:
                found[name] = way
    return found


# ---------------------------------------------------------------- JAX


def _jax(case: Case, arguments: tuple[torch.Tensor, ...]) -> Way | None:
    import jax
    import jax.numpy as jnp

    def softmax_by_hand(x):
        e = jnp.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(x, w, b):
        mean = x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        return (x - mean) * scale * w + b

    def rms_norm(x, w):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * w

    def cross_entropy(x, t):
        return -jnp.take_along_axis(jax.nn.log_softmax(x), t[:, None], 1).mean()

    def masked_scores(x, mask):
        return jax.nn.softmax(jnp.where(mask > -1, x * 0.125, -1e9), -1)

    def huber(x, y):
        d = jnp.abs(x - y)
        return jnp.where(d < 1, 0.5 * d * d, d - 0.5).mean()

    def adamw(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return p * (1 - 1e-4) - 1e-2 * m / (jnp.sqrt(v) + 1e-8)

    def rotary(x, cos, sin):
        low, high = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate([-high, low], -1) * sin

    def divergence(x, y):
        p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(y)
        return (jnp.exp(p) * (p - q)).sum(-1)

    def gelu(x):
        return jax.nn.gelu(x, approximate=False)

    def block(x, g1, b1, wqkv, wo, g2, b2, w1, w2):
        batch, tokens, width = x.shape
        parts = jnp.split(layer_norm(x, g1, b1) @ wqkv, 3, -1)
        q, k, v = (t.reshape(batch, tokens, HEADS, -1).transpose(0, 2, 1, 3) for t in parts)
        scores = jax.nn.softmax(q @ k.swapaxes(2, 3) / math.sqrt(width // HEADS), -1)
        x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width) @ wo
        return x + gelu(layer_norm(x, g2, b2) @ w1) @ w2

    functions = {
        "add": lambda a, b: a + b,
        "chain": lambda a, b, c: gelu(a * b + c) * jax.nn.sigmoid(a),
        "swiglu": lambda a, b: jax.nn.silu(a) * b,
        "relu_sum": lambda a, b: jax.nn.relu(a + b),
        "leaky": lambda x: jnp.where(x > 0, x, x * 0.1),
        "exp": jnp.exp,
        "log": lambda x: jnp.log(x * x),
        "tanh": jnp.tanh,
        "erf": jax.lax.erf,
        "sin": jnp.sin,
        "power": lambda x, y: jnp.abs(x) ** y,
        "bias": lambda x, b: x + b,
        "add_transposed": lambda a, b: a + b.T,
        "transposed": lambda x: x.T,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "softmax_by_hand": softmax_by_hand,
        "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
        "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "relu_of_norm": lambda a, b: jax.nn.relu(layer_norm(a + b, 1.0, 0.0)),
        "variance": lambda x: x.var(-1, ddof=1),
        "argmax": lambda x: x.argmax(-1),
        "cross_entropy": cross_entropy,
        "total": lambda x: x.sum(),
        "row_sums": lambda x: x.sum(-1),
        "column_sums": lambda x: x.sum(0),
        "cumsum": lambda x: jnp.cumsum(x, -1),
        "mish": lambda x: x * jnp.tanh(jnp.log(1 + jnp.exp(x))),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "adamw": adamw,
        "rotary": rotary,
        "normalized": lambda x, mean, std: ((x * 0.5 + 0.5) - mean) / std,
        "quantized": lambda x, scale: jnp.clip(jnp.round(x / scale), -128, 127) * scale,
        "huber": huber,
        "logistic_loss": lambda x, y: (
            jax.nn.relu(x) - x * y + jnp.log1p(jnp.exp(-jnp.abs(x)))
        ).mean(),
        "masked_scores": masked_scores,
        "softcapped_scores": lambda x: jax.nn.softmax(30.0 * jnp.tanh(x / 30.0), -1),
        "add_rms_norm": lambda x, y, w: rms_norm(x + y, w),
        "cosines": lambda a, b: (a * b).sum(-1) / jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1)),
        "divergence": divergence,
        "matmul": lambda x, w: x @ w,
        "dense": lambda x, w, b: gelu(x @ w + b),
        "block": block,
    }
    fn = jax.jit(functions[case.fn.__name__])
    given = [jax.dlpack.from_dlpack(x) for x in arguments]
    return lambda: fn(*given).block_until_ready()


# ---------------------------------------------------------------- Numba


def _numba(case: Case, arguments: tuple[torch.Tensor, ...]) -> Way | None:
    """Loops by hand, run on all threads. Half precision and attention are left out."""
    from benchmarks import numba_loops

    fn = getattr(numba_loops, case.fn.__name__, None)
    if fn is None or case.dtype != torch.float32:
        return None
    given = [x.numpy() for x in arguments]
    return lambda: fn(*given)


# ---------------------------------------------------------------- Warp


def _warp(case: Case, arguments: tuple[torch.Tensor, ...]) -> Way | None:
    """Elementwise functions of float32; Warp's kernels run on one thread of a CPU."""
    from benchmarks import warp_kernels

    kernel = getattr(warp_kernels, case.fn.__name__, None)
    if kernel is None or case.dtype != torch.float32:
        return None
    return warp_kernels.way(kernel, arguments)
