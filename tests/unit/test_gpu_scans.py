"""Running sums on the GPU with what comes before and after them: one kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.runtime import cuda
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


def rates(x):
    return torch.exp(-F.softplus(x) * 1e-4)


def decays(x):
    """Of factors, which are a result as well: how these are rounded adds up in their product."""
    factors = rates(x)
    return factors.cumprod(-1).log(), factors


def returns(x):
    """What is left to come, from each step on."""
    return (torch.tanh((x * 0.5).flip(-1).cumsum(-1).flip(-1) / 8) + x,)


FUNCTIONS = (between, positions, nucleus, decays, returns)
SHAPES = (
    (4, 1000),
    (3, 1025),
    (257, 5000),
    (40, 1024),
    (3, 33),
    (2, 70000),
    (700, 50),
    (2, 3, 40),
    (4096,),
)


def agree(fn: Callable[..., Any], x: torch.Tensor, program: bt.Compiled) -> None:
    """Compare with torch in float64: a running product with that of the factors that it is of."""
    if fn is not decays:
        check(fn, x, within=1e-4, program=program)
        return
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found, factors = (value.double() for value in gpu.call(program, (x,)))
            torch.testing.assert_close(factors, rates(x.double()), rtol=2**-21, atol=0)
            exact = factors.cumprod(-1).log()
            torch.testing.assert_close(found, exact, rtol=2**-21, atol=2**-22)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_kernel(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Where rows are shared by blocks, launches of one function: one for what the pieces have."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = compiled(fn, x)
    assert rules(fn, x) == {"Scan"}
    assert len(program.kernels) == 1
    assert len(program.launches) <= 2
    agree(fn, x, program)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(2, 2), (5, 31), (3, 1000), (2, 20000)], ids=str)
def test_sizes_that_calls_tell(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    program = bt.jit(gpu.TARGET, dynamic=True)(fn).lower(torch.empty(6, 48)).compile()
    assert len(program.kernels) == 1
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    agree(fn, x, program)


@pytest.mark.parametrize(
    ("length", "dtype", "threads"),
    [
        *((1024, torch.float32, 64), (1024, torch.bfloat16, 64), (256, torch.float32, 64)),
        *((4096, torch.float32, 256), (4096, torch.bfloat16, 256), (1003, torch.float32, 256)),
    ],
)
def test_threads_of_a_row(length: int, dtype: torch.dtype, threads: int) -> None:
    (launch,) = compiled(forth, torch.empty(4096, length, dtype=dtype)).launches
    assert launch.block == (threads,)


def forth(x):
    return (x.cumsum(-1),)


def back(x):
    return (x.flip(-1).cumsum(-1).flip(-1),)


@pytest.mark.parametrize("signs", ["positive", "alternating"])
@pytest.mark.parametrize("fn", [forth, back], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(1, 1000003), (257, 20000), (3, 4096), (5, 1003)], ids=str)
def test_sums_of_float32_lose_few_digits(
    shape: tuple[int, int], fn: Callable[..., Any], signs: str
) -> None:
    """However long a row is: a few roundings of a result, and of the numbers of a step."""
    x = 2 * torch.rand(shape, generator=torch.Generator().manual_seed(0))
    if signs == "alternating":
        x[:, 1::2] *= -1
    (found,) = gpu.call(compiled(fn, x), (x,))
    (exact,), (sizes,) = fn(x.double()), fn(x.double().abs())
    limit = 8 * 2**-24 * torch.minimum(sizes, exact.abs() + 4096)
    assert ((found.double() - exact).abs() <= limit).all()


def doubles(code: str) -> set[str]:
    """What a kernel has in float64."""
    return set(re.findall(r"\bdouble(?:\* __restrict__)? (\w+)", code))


def test_sums_of_float32_are_wide_from_step_to_step() -> None:
    assert doubles(compiled(forth, torch.empty(600, 4096)).source()) == set()
    assert doubles(compiled(forth, torch.empty(600, 5000)).source()) == {"x_carry"}
    among = {"x_carry", "x_of_piece", "x_of_pieces", "x_so_far_of_warps"}
    for x in (torch.empty(2, 70000), torch.empty(1, 1000003)):
        assert doubles(compiled(forth, x).source()) == among
    # Products stay, and what is of float64.
    assert "x_wide_part" in doubles(compiled(lambda x: x.cumprod(-1), x).source())
    assert "x_wide_part" in doubles(compiled(forth, x.double()).source())


@pytest.mark.parametrize(
    ("shape", "dtype", "turns"),
    [
        ((600, 4096), torch.float32, 4),
        ((600, 4096), torch.bfloat16, 2),
        ((600, 1003), torch.float32, 4),
        ((600, 1003), torch.bfloat16, 4),
        ((600, 600), torch.int64, 2),
    ],
    ids=str,
)
def test_one_barrier_for_rows_of_a_few_thousand(
    shape: tuple[int, int], dtype: torch.dtype, turns: int
) -> None:
    """What a thread has of a row is loaded at once, and warps wait for each other once."""
    x = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = compiled(forth, x)
    code = program.source()
    assert "int step" not in code
    assert code.count("__syncthreads()") == 1
    assert code.count(f"turn < {turns};") == 3
    # Whole numbers that no sum is too large for.
    (found,) = gpu.call(program, (x,))
    assert torch.equal(found, x.double().cumsum(-1).to(dtype))


def test_the_last_step_has_as_many_vectors_as_the_others() -> None:
    """Of five vectors a thread, three and two."""
    code = compiled(forth, torch.empty(600, 5000)).source()
    assert "step < 2;" in code
    assert code.count("turn < 3;") == 3


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(600, 4096), (600, 1003), (7, 1000003)], ids=str)
def test_machine_code(shape: tuple[int, int], dtype: torch.dtype, arch: str) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    x = torch.empty(shape, dtype=dtype, device="meta")
    for launch in bt.jit(target=bt.Target("cuda", arch=arch))(forth).lower(x).compile().launches:
        assert launch.registers is not None
        assert launch.registers <= 64, launch
        assert launch.spilled == 0, launch


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
