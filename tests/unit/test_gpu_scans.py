"""Running sums on the GPU with what comes before and after them: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def between(x):
    return (F.relu(x).cumsum(-1) * 2,)


def positions(x):
    """The number of each token among those that are not masked."""
    mask = x > 0
    return ((mask.cumsum(-1) - 1).masked_fill(~mask, 0),)


def nucleus(x):
    """Of sorted shares, those before which there are less than some in sum; and what led there."""
    shares = torch.exp(-x.abs()) / 100
    total = shares.cumsum(-1)
    return torch.where(total - shares > 0.3, 0.0, shares), total, shares


def decays(x):
    return (torch.exp(-F.softplus(x) * 1e-4).cumprod(-1).log(),)


def returns(x):
    """What is left to come, from each step on."""
    return (torch.tanh((x * 0.5).flip(-1).cumsum(-1).flip(-1) / 8) + x,)


FUNCTIONS = (between, positions, nucleus, decays, returns)
SHAPES = ((4, 1000), (40, 1024), (3, 33), (2, 70000), (700, 50), (2, 3, 40), (4096,))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_kernel(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Where rows are shared by blocks, launches of one function: one for what the pieces have."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = compiled(fn, x)
    assert rules(fn, x) == {"Scan"}
    assert len(program.kernels) == 1
    assert len(program.launches) <= 2
    check(fn, x, within=1e-4, program=program)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(2, 2), (5, 31), (3, 1000), (2, 20000)], ids=str)
def test_sizes_that_calls_tell(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    program = bt.jit(gpu.TARGET, dynamic=True)(fn).lower(torch.empty(6, 48)).compile()
    assert len(program.kernels) == 1
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    check(fn, x, within=1e-4, program=program)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(5, 520, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = compiled(between, x)
    assert len(program.launches) == 1
    within = {torch.float64: 1e-12, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    check(between, x, within=within, program=program)


def test_numbers_of_rows_and_of_columns() -> None:
    def weighted(x, scale, bias):
        return ((x * scale + bias).cumsum(-1) / scale - bias,)

    x, scale, bias = torch.randn(5, 7, 300), torch.rand(7, 1) + 0.5, torch.randn(300)
    program = compiled(weighted, x, scale, bias)
    assert len(program.launches) == 1
    check(weighted, x, scale, bias, within=1e-4, program=program)


def test_single_numbers() -> None:
    """Those that are computed once stand apart, or are computed by each thread."""

    def scaled(x, s):
        return (x * (s * 2 + 1)).cumsum(-1) - s, (x * torch.exp(s)).cumsum(-1) * torch.exp(s * 3)

    check(scaled, torch.randn(5, 300), torch.tensor(0.3), within=1e-4)


def test_what_needs_other_numbers_stays_apart() -> None:
    """Such as the sum so far of the number before, or the sum of all."""

    def shifted(x):
        total = x.cumsum(-1)
        return total[:, 1:] - total[:, :-1], total / total[:, -1:]

    x = torch.rand(4, 300, generator=torch.Generator().manual_seed(0)) + 0.5
    check(shifted, x, within=1e-4)


def test_two_running_sums_are_two_kernels() -> None:
    def twice(x):
        return (((x + 1).cumsum(-1) * 2).cumsum(-1) / 3,)

    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    assert len(compiled(twice, x).launches) == 2
    check(twice, x, within=1e-4)


def test_gradients() -> None:
    def fn(x):
        return torch.tanh(x).cumsum(-1) * 2

    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0), requires_grad=True)
    program = compiled(fn, x)
    assert len(program.kernels) == 1
    grad = torch.rand(4, 300)
    (found,) = gpu.gradients(program, (x,), {0: grad})
    exact = x.detach().double().requires_grad_()
    fn(exact).backward(grad.double())
    torch.testing.assert_close(found.double(), exact.grad, rtol=1e-5, atol=1e-4)
