"""Parts of short rows, such as the corners of boxes: kernels that read several are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def areas_and_centres(boxes):
    x, y, right, bottom = boxes.unbind(-1)
    return (right - x) * (bottom - y), (right + x) / 2, (bottom + y) / 2


def sums_and_products(boxes):
    return boxes[..., 0] + boxes[..., 3], boxes[..., 0] * boxes[..., 3]


def of_matrices(boxes):
    pairs = boxes.unflatten(0, (-1, 1))
    return pairs[..., 1].exp(), pairs[..., 1] - pairs[..., 2]


FUNCTIONS = [areas_and_centres, sums_and_products, of_matrices]


def boxes(rows: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.rand(rows, 4, generator=generator).to(dtype)


@pytest.mark.parametrize("target", ["cpu", gpu.TARGET])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_one_kernel_reads_all_parts(fn: Callable[..., Any], target: Any) -> None:
    given = boxes(4096, torch.float32)
    assert len(bt.jit(target)(fn).lower(given).schedule().kernels) == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_on_the_cpu(fn: Callable[..., Any], dtype: torch.dtype, dynamic: bool) -> None:
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    for rows in (1, 7, 33, 1000, 4097):
        given = boxes(rows, dtype)
        torch.testing.assert_close(compiled(given), fn(given))


@needs_gpu
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 33, 1000, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_on_the_gpu(fn: Callable[..., Any], dtype: torch.dtype, rows: int, dynamic: bool) -> None:
    given = boxes(rows, dtype)
    compiled = bt.jit(gpu.TARGET, dynamic=dynamic)(fn).lower(given).compile()
    torch.testing.assert_close(gpu.call(compiled, (given,)), fn(given))


@needs_gpu
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients_on_the_gpu(fn: Callable[..., Any]) -> None:
    given = boxes(1000, torch.float32).requires_grad_()
    compiled = bt.jit(gpu.TARGET, dynamic=False)(fn).lower(given).compile()
    results = fn(given)
    grads = [torch.linspace(-1, 1, x.numel()).reshape(x.shape) for x in results]
    (expected,) = torch.autograd.grad(results, given, grads)
    (found,) = gpu.gradients(compiled, (given,), dict(enumerate(grads)))
    torch.testing.assert_close(found, expected)
