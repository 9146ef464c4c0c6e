"""Sums, means and maxima of diagonals: those of rows, whose numbers lie apart in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

on_the_emulator = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def trace(x):
    return (torch.trace(x),)


def total(x):
    return (x.diagonal(1).sum() * 2,)


def means(x):
    return (x.expand(3, *x.shape).diagonal(dim1=1, dim2=2).mean(-1),)


def largest(x):
    return (x.diagonal().amax(), x.diagonal().sum())


FUNCTIONS = (trace, total, means, largest)
SHAPES = ((1, 1), (31, 33), (33, 31), (300, 300), (1025, 1000))


@on_the_emulator
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_one_kernel_of_rows(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = compiled(fn, x)
    assert rules(fn, x) == {"Rowwise"}
    assert len(program.launches) == 1
    check(fn, x, within=1e-4, program=program)


@on_the_emulator
def test_long_ones_are_shared_by_blocks() -> None:
    x = torch.empty(1 << 17, 1 << 17, dtype=torch.float16, device="meta")
    first, second = compiled(trace, x).launches
    assert first.grid == (128,)
    assert second.grid == (1,)


@on_the_emulator
@pytest.mark.parametrize("shape", [(2, 2), *SHAPES[1:]], ids=str)
def test_sizes_that_calls_tell(shape: tuple[int, int]) -> None:
    program = bt.jit(gpu.TARGET, dynamic=True)(trace).lower(torch.empty(6, 48)).compile()
    check(trace, torch.randn(shape), within=1e-4, program=program)


@on_the_emulator
def test_every_other_number_of_rows() -> None:
    def fn(x):
        return (x[:, ::2].sum(-1),)

    x = torch.randn(40, 501)
    assert rules(fn, x) == {"Rowwise"}
    check(fn, x, within=1e-4)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 4)], ids=str)
def test_on_the_cpu(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    (found,), expected = bt.jit(trace)(x), torch.trace(x.double())
    assert found.dtype == torch.trace(x).dtype
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-4)


@on_the_emulator
def test_gradients() -> None:
    x = torch.randn(33, 40, requires_grad=True)
    (found,) = gpu.gradients(compiled(trace, x), (x,), {0: torch.tensor(3.0)})
    assert torch.equal(found, 3 * torch.eye(33, 40))
