"""Running extremes and logarithms of sums of exponentials, whose walks a GPU's threads share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import compiled, rules

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def largest(x):
    return tuple(x.cummax(-1))


def smallest(x):
    return tuple(x.cummin(-1))


def values(x):
    return x.cummax(-1).values, x.cummin(-1).values


def places(x):
    return (x.cummin(-1).indices,)


def logarithms(x):
    return (x.logcumsumexp(-1),)


EXTREMES = (largest, smallest, values, places)
LENGTHS = (1, 31, 33, 1000, 1024, 4097, 32768)
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, ties: bool = False) -> torch.Tensor:
    """Those that drift, so that extremes come everywhere; or with ties, both zeros and NaN."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if not dtype.is_floating_point:
        return (x * 40).to(dtype)
    if not ties:
        x += 2 * x.cumsum(-1) / shape[-1] ** 0.5
    else:
        x = (x * 2).round()
        x[x == 1] = -0.0
        x[..., shape[-1] * 2 // 3 :: 97] = math.nan
        x[..., 0] = -math.inf
    return x.to(dtype)


def same(fn: Callable[..., Any], x: torch.Tensor, program: bt.Compiled) -> None:
    """Compare with torch, in each order of threads."""
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            for ours, theirs in zip(gpu.call(program, (x,)), fn(x)):
                assert ours.dtype == theirs.dtype
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", EXTREMES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", LENGTHS)
def test_extremes(fn: Callable[..., Any], length: int) -> None:
    for count, ties in ((1, False), (7, True)):
        x = numbers(count, length, ties=ties)
        program = compiled(fn, x)
        if length >= 32:
            assert rules(fn, x) == {"Scan"}
        same(fn, x, program)


@pytest.mark.parametrize("fn", EXTREMES[:3], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [33, 5000])
def test_dtypes(fn: Callable[..., Any], dtype: torch.dtype, length: int) -> None:
    x = numbers(5, length, dtype=dtype)
    same(fn, x, compiled(fn, x))


@pytest.mark.parametrize("fn", [largest, smallest], ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", [64, 1000, 70000])
def test_zeros_are_those_of_their_places(fn: Callable[..., Any], length: int) -> None:
    """The last of equal numbers is taken, with its sign."""
    x = torch.zeros(3, length)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5] = -0.0
    found, at = gpu.call(compiled(fn, x), (x,))
    assert torch.equal(at, fn(x)[1])
    assert torch.equal(found.signbit(), x.gather(-1, at).signbit())


@pytest.mark.parametrize("fn", [largest, smallest, logarithms], ids=lambda f: f.__name__)
def test_least_numbers(fn: Callable[..., Any]) -> None:
    """Those that walks start from are numbers like others."""
    for x in (torch.full((3, 3000), -math.inf), torch.full((3, 3000), math.inf)):
        same(fn, x, compiled(fn, x))
    if fn is not logarithms:
        for dtype in (torch.int64, torch.int8):
            for limit in (torch.iinfo(dtype).min, torch.iinfo(dtype).max):
                x = torch.full((2, 3000), limit, dtype=dtype)
                same(fn, x, compiled(fn, x))


@pytest.mark.parametrize("fn", [*EXTREMES, logarithms], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(2, 2), (5, 31), (3, 1000), (2, 20000)], ids=str)
def test_sizes_that_calls_tell(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    program = bt.jit(gpu.TARGET, dynamic=True)(fn).lower(torch.empty(6, 48)).compile()
    x = numbers(*shape, ties=fn is not logarithms)
    if fn is logarithms:
        near(x, program)
    else:
        same(fn, x, program)


@pytest.mark.parametrize("dim", [0, 1])
def test_other_axes_are_turned_over(dim: int) -> None:
    def fn(x):
        return *x.cummax(dim), x.cummin(dim).values

    x = (
        numbers(3, 1000, 5)[:, :, 1:].transpose(0, 1).contiguous()
        if dim == 0
        else numbers(3, 900, 5)
    )
    assert "Scan" in rules(fn, x)
    same(fn, x, compiled(fn, x))


def test_what_is_not_read_is_not_written() -> None:
    x = torch.empty(600, 4096)
    for fn, results in ((lambda x: x.cummax(-1).values, "float"), (places, "int64_t")):
        code = compiled(fn, x).source()
        assert code.count("* __restrict__") == 2
        assert f", {results}* __restrict__" in code.replace("\n    ", " ")
        assert ("x_place" in code) == (fn is places)
    serial = compiled(lambda x: x.cummax(0).values, torch.empty(40, 100000)).source()
    assert serial.count("* __restrict__") == 2
    assert "int64_t" not in serial.split("{")[-1]


def test_around_them() -> None:
    """What comes before and after is of the same kernel."""

    def fn(x):
        value, place = (x * 2).abs().cummax(-1)
        return value - x, place + 1

    x = numbers(40, 1000)
    program = compiled(fn, x)
    assert len(program.launches) == 1
    same(fn, x, program)


def test_from_the_other_end() -> None:
    """Values alone are walked to from the other end; places are counted from the first."""

    def ahead(x):
        return (x.flip(-1).cummax(-1).values.flip(-1),)

    def at(x):
        return (x.flip(-1).cummin(-1).indices.flip(-1),)

    x = numbers(40, 1003, ties=True)
    assert len(compiled(ahead, x).launches) == 1
    for fn in (ahead, at):
        same(fn, x, compiled(fn, x))


def near(x: torch.Tensor, program: bt.Compiled) -> None:
    """Compare with float64: a few roundings of the largest number, and of the result."""
    exact = x.double().logcumsumexp(-1)
    # Of float64, torch's own are as far from exact ones.
    step = torch.finfo(x.dtype).eps * (16 if x.dtype == torch.float64 else 1)
    sizes = x.double().cummax(-1).values.abs() + exact.abs() + 1
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            (found,) = gpu.call(program, (x,))
            assert ((found.double() - exact).abs() <= 4 * step * sizes).all()


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("shape", [*((3, n) for n in LENGTHS), (257, 5000), (1, 300001)], ids=str)
def test_logarithms(shape: tuple[int, int], scale: float) -> None:
    x = numbers(*shape) * scale
    program = compiled(logarithms, x)
    if shape[1] >= 32:
        assert rules(logarithms, x) == {"Scan"}
    near(x, program)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [33, 5000])
def test_logarithms_of_dtypes(dtype: torch.dtype, length: int) -> None:
    x = numbers(5, length, dtype=dtype)
    near(x, compiled(logarithms, x))


def walk(x: torch.Tensor) -> torch.Tensor:
    """As torch's kernel for GPUs adds up: in float32, from number to number."""
    found = [x[:, 0]]
    for column in x[:, 1:].unbind(1):
        found.append(torch.logaddexp(found[-1], column))
    return torch.stack(found, 1)


def test_logarithms_are_nearer_than_those_of_float32() -> None:
    x = numbers(2, 8192)
    exact = x.double().logcumsumexp(-1)
    (found,) = gpu.call(compiled(logarithms, x), (x,))
    ours, theirs = ((one.double() - exact).abs().max() for one in (found, walk(x)))
    assert ours < theirs


@pytest.mark.parametrize("length", [40, 3000, 70000])
def test_logarithms_of_infinities(length: int) -> None:
    rows = []
    for first, second in itertools.product((0.0, math.inf, -math.inf, math.nan), repeat=2):
        row = torch.full((length,), -math.inf)
        row[length // 3], row[length // 2] = first, second
        rows.append(row)
    x = torch.stack(rows)
    exact = x.double().logcumsumexp(-1).float()
    (found,) = gpu.call(compiled(logarithms, x), (x,))
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("fn", [largest, smallest, logarithms], ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", [33, 3000])
def test_gradients(fn: Callable[..., Any], length: int) -> None:
    x = numbers(3, length).requires_grad_()
    grad = torch.rand(3, length, generator=torch.Generator().manual_seed(1))
    (found,) = gpu.gradients(compiled(fn, x), (x,), {0: grad})
    exact = x.detach().double().requires_grad_()
    fn(exact)[0].backward(grad.double())
    torch.testing.assert_close(found.double(), exact.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("fn", [largest, logarithms], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(600, 4096), (600, 1003), (7, 1000003)], ids=str)
def test_machine_code(
    shape: tuple[int, int], dtype: torch.dtype, fn: Callable[..., Any], arch: str
) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    if fn is logarithms and not dtype.is_floating_point:
        pytest.skip("of floats alone")
    x = torch.empty(shape, dtype=dtype, device="meta")
    for launch in bt.jit(target=bt.Target("cuda", arch=arch))(fn).lower(x).compile().launches:
        assert launch.registers is not None
        assert launch.registers <= 128, launch
        assert launch.spilled == 0, launch
