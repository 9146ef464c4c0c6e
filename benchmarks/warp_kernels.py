"""Elementwise functions of benchmarks/cases.py as kernels of NVIDIA's Warp."""

# Warp reads the annotations of its kernels as values: they may not be postponed.

from collections.abc import Callable
from typing import Any

import torch
import warp as wp

wp.config.quiet = True
wp.init()
ARRAY = wp.array(dtype=wp.float32)


@wp.kernel(enable_backward=False)
def chain(a: ARRAY, b: ARRAY, c: ARRAY, out: ARRAY):
    i = wp.tid()
    y = a[i] * b[i] + c[i]
    out[i] = y * 0.5 * (1.0 + wp.erf(y * 0.70710678)) / (1.0 + wp.exp(-a[i]))


@wp.kernel(enable_backward=False)
def relu_sum(a: ARRAY, b: ARRAY, out: ARRAY):
    i = wp.tid()
    out[i] = wp.max(a[i] + b[i], 0.0)


@wp.kernel(enable_backward=False)
def exp(x: ARRAY, out: ARRAY):
    i = wp.tid()
    out[i] = wp.exp(x[i])


@wp.kernel(enable_backward=False)
def tanh(x: ARRAY, out: ARRAY):
    i = wp.tid()
    out[i] = wp.tanh(x[i])


def way(kernel: Any, arguments: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """A launch of a kernel on tensors, into a fresh result."""
    given = [wp.from_torch(x) for x in arguments]

    def launch() -> Any:
        out = wp.empty_like(given[0])
        wp.launch(kernel, dim=given[0].size, inputs=[*given, out], device="cpu")
        return out.numpy()

    return launch
