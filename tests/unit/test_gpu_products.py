"""Matrix products on the GPU without tensor cores: values, what is fused, and the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.kernels import rules_of
from tests.unit.test_tensor_cores import LAYOUTS, of_both, product

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
SIZES = [(5, 6, 7), (33, 17, 29), (64, 64, 64), (32, 40, 100), (9, 300, 12), (8, 1, 8)]


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) / 2).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape, generator=generator).to(dtype)


def check(fn: Callable[..., Any], *args: torch.Tensor) -> bt.Compiled:
    """Compile, see that the rule took the product, and compare with float64, or with integers."""
    scheduled = bt.jit(gpu.TARGET)(fn).lower(*args).schedule()
    assert "Matmul" in rules_of(scheduled.mod)
    compiled = scheduled.compile()
    dtype = args[0].dtype
    exact = fn(*(x.double() for x in args)) if dtype.is_floating_point else fn(*args)
    epsilon = 4 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.call(compiled, args)
        largest = float(exact.abs().max()) if dtype.is_floating_point else 1.0
        torch.testing.assert_close(
            found.to(exact.dtype), exact, rtol=epsilon, atol=epsilon * largest
        )
    return compiled


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("fn", LAYOUTS, ids=lambda fn: fn.__name__)
def test_layouts(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    left, right = LAYOUTS[fn]
    for rows, depth, columns in SIZES:
        if depth > 1:
            shapes = (rows, depth)[::left], (depth, columns)[::right]
            check(fn, *(numbers(shape, dtype) for shape in shapes))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "threads"),
    [(1408, 8, 1411, 8), (1411, 9, 1408, 8), (768, 16, 768, 4), (770, 40, 771, 4)],
)
@pytest.mark.parametrize("fn", [product, of_both], ids=lambda fn: fn.__name__)
def test_large_tiles(
    fn: Callable[..., Any], rows: int, depth: int, columns: int, threads: int
) -> None:
    """Where there are enough of them, a thread has as many results along both sides."""
    left, right = LAYOUTS[fn]
    shapes = (rows, depth)[::left], (depth, columns)[::right]
    compiled = check(fn, *(numbers(shape, torch.int32) for shape in shapes))
    name = "product" if fn is product else "of_both"
    assert f"int {name}_tile[{threads**2}]" in compiled.source()
    assert compiled.launches[0].block == (256,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_batches(dtype: torch.dtype) -> None:
    def batched(x, w):
        return torch.einsum("bmk,bkn->bmn", x, w)

    def elsewhere(x, w):
        return torch.einsum("mbkc,kbnc->nbm", x, w)

    check(batched, numbers((3, 20, 30), dtype), numbers((3, 30, 9), dtype))
    check(elsewhere, numbers((20, 3, 30, 2), dtype), numbers((30, 3, 9, 2), dtype))


def test_a_tensor_by_itself() -> None:
    def gram(x):
        return x @ x.T

    check(gram, numbers((40, 30), torch.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_follows_is_in_the_kernel(dtype: torch.dtype) -> None:
    def layer(x, w, b, r):
        return torch.relu(x @ w + b) + r

    shapes = (20, 40), (40, 36), (36,), (20, 36)
    compiled = check(layer, *(numbers(shape, dtype) for shape in shapes))
    assert len(compiled.launches) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv2d(x, w, padding=(2, 0), dilation=2),
        lambda x, w: torch.relu(F.conv2d(x, w, padding=1)) * 2,
    ],
    ids=["padded", "dilated", "relu"],
)
def test_convolutions(fn: Callable[..., Any]) -> None:
    """What lies beyond the edge is not read."""
    compiled = check(fn, numbers((2, 4, 9, 7), torch.float32), numbers((5, 4, 3, 3), torch.float32))
    assert len(compiled.launches) == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("size", "depth", "dtype"),
    [
        (1408, 64, torch.int32),
        (768, 64, torch.int64),
        (64, 64, torch.float32),
        (64, 128, torch.float16),
        (96, 64, torch.float64),
    ],
    ids=str,
)
def test_machine_code(arch: str, size: int, depth: int, dtype: torch.dtype) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    args = numbers((size, depth), dtype), numbers((depth, size), dtype)
    compiled = bt.jit(bt.Target("cuda", arch))(product).lower(*args).compile()
    (launch,) = compiled.launches
    assert launch.registers is not None
    assert launch.registers <= 168
    assert launch.spilled == 0
    assert "LDG.E.128" in compiled.source("sass")


def test_the_text_is_short() -> None:
    compiled = check(product, *(numbers((64, 64), torch.float32),) * 2)
    lines = compiled.source().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
