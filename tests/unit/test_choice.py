"""Products that are left to torch, and which lines the kernels cover."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.unit.test_fusion import handwritten_softmax

GPU = bt.Target("cuda", arch="sm_80")


def convolved(x, w):
    return F.conv2d(x, w, padding=1) * 2


def fallbacks(fn, *args, target=None):
    jitted = bt.jit("cpu")(fn) if target is None else bt.jit(target=target)(fn)
    return [fallback.name for fallback in jitted.lower(*args).fallbacks]


def test_large_convolutions_are_torchs() -> None:
    x, w = torch.randn(1, 16, 20, 20), torch.randn(8, 16, 3, 3)
    jitted = bt.jit("cpu")(convolved)
    torch.testing.assert_close(jitted(x, w), convolved(x, w))
    (fallback,) = jitted.lower(x, w).fallbacks
    assert fallback.reason == "torch's library is faster for a convolution of this size"


def test_small_convolutions_are_ours() -> None:
    args = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    assert fallbacks(convolved, *args) == []
    torch.testing.assert_close(bt.jit("cpu")(convolved)(*args), convolved(*args))


def test_convolutions_are_ours_where_there_is_no_choice() -> None:
    large = torch.randn(1, 16, 20, 20), torch.randn(8, 16, 3, 3)
    assert fallbacks(convolved, *large, target=GPU) == []
    assert fallbacks(convolved, *(x.bfloat16() for x in large)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_ours(dtype: torch.dtype) -> None:
    def product(x, w):
        return torch.relu(x @ w)

    x, w = torch.randn(256, 300, dtype=dtype), torch.randn(300, 270, dtype=dtype)
    assert fallbacks(product, x, w) == []
    actual, exact = bt.jit("cpu")(product)(x, w), product(x.double(), w.double())
    tolerance = 300**0.5 * 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=16 * tolerance)


def test_kernels_know_their_lines() -> None:
    first = inspect.getsourcelines(handwritten_softmax)[1]
    file = inspect.getsourcefile(handwritten_softmax)
    for target in ("cpu", GPU):
        (kernel,) = (
            bt.jit(target=target)(handwritten_softmax).lower(torch.ones(8, 64)).schedule().kernels
        )
        assert kernel.lines == (f"{file}:{first + 1}", f"{file}:{first + 2}")


def test_lines_of_several_kernels() -> None:
    def f(x):
        y = torch.exp(x) + 1
        z = torch.sort(y).values
        return z * 2

    first = inspect.getsourcelines(f)[1]
    kernels = bt.jit("cpu")(f).lower(torch.ones(5)).compile().kernels
    lines = [[int(line.rpartition(":")[2]) - first for line in kernel.lines] for kernel in kernels]
    assert sorted(lines) == [[1], [3]]
