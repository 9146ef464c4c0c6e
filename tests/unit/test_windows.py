"""Windows on the GPU: a thread for each, which keeps it in a register until it is whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

on_gpu = pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")


def largest(x):
    return F.max_pool2d(x, 3, 2, 1)


def dilated(x):
    return F.max_pool2d(x, 3, 1, 1, 2)


def mean(x):
    return F.avg_pool2d(x, 3, 1, 1)


def halved(x):
    return F.avg_pool2d(x * 2, 2).relu()


def along_one(x):
    return F.avg_pool1d(x.flatten(0, 1), 5, 3) + 1


def activated(x):
    return torch.sigmoid(F.max_pool2d(F.relu(x), (2, 3), (1, 2))) * 2


FUNCTIONS = [largest, dilated, mean, halved, along_one, activated]
SHAPES = [(2, 3, 9, 11), (1, 1, 33, 31), (3, 5, 16, 16)]


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = torch.randn(shape).to(dtype)
        x[..., 0, 1] = torch.nan
        compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
        exact, tolerance = fn(x.double()), 2e-2 if dtype == torch.bfloat16 else 1e-5
        found = gpu.call(compiled, [x]).double()
        torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance, equal_nan=True)


@on_gpu
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_any_sizes(fn: Callable[..., Any]) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(bt.Tensor(("n", 3, 9, 11), "float32")).compile()
    for count in (2, 5):
        x = torch.randn(count, 3, 9, 11)
        torch.testing.assert_close(gpu.call(compiled, [x]), fn(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_one_kernel_that_writes_each_result_once(fn: Callable[..., Any]) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(torch.randn(2, 4, 32, 32)).compile()
    source = compiled.source("cuda")
    assert len(re.findall("__global__", source)) == 1
    (output,) = re.findall(rf"\w+\* __restrict__ ({fn.__name__})\b", source)
    assert len(re.findall(rf"\b{output}\[", source)) == 1
    assert len(re.findall(r"\bx\[", source)) == 1
    assert '"Windows"' in compiled.source("tir")


def both(x):
    y = F.avg_pool2d(x, 2)
    return y, torch.relu(y) * 2


@on_gpu
def test_several_results() -> None:
    x = torch.randn(2, 3, 10, 14)
    compiled = bt.jit(gpu.TARGET)(both).lower(x).compile()
    assert compiled.source("cuda").count("__global__") == 1
    assert '"Windows"' in compiled.source("tir")
    for ours, theirs in zip(gpu.call(compiled, [x]), both(x)):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def rows_of_a_part(x):
    return x[:, :512].reshape(-1, 128).sum(-1)


def long_windows(x):
    return x.unfold(1, 256, 1).amax(-1)


@pytest.mark.parametrize("fn", [rows_of_a_part, long_windows])
def test_threads_share_long_windows(fn: Callable[..., Any]) -> None:
    source = bt.jit(gpu.TARGET)(fn).lower(torch.randn(64, 1024)).compile().source("cuda")
    assert "__shfl" in source
    assert source.count("__global__") == 1


@pytest.mark.parametrize("kind", ["metal", "opencl", "webgpu"])
def test_sources_of_other_kinds(kind: str) -> None:
    compiled = bt.jit(bt.Target(kind))(mean).lower(torch.randn(2, 4, 32, 32)).compile()
    assert len(compiled.kernels) == 1
    assert compiled.source(kind)
