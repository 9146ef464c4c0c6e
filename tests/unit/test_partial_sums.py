"""Sums of all that rows compute: each row is added up by what computes it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def entropy(x, y):
    return (-(x.softmax(-1) * torch.log_softmax(x, -1)).sum(),)


def divergence(x, y):
    return (F.kl_div(torch.log_softmax(x, -1), y, reduction="batchmean"),)


def error_of_norm(x, y):
    return (((F.rms_norm(x, (x.shape[-1],)) - y) ** 2).mean(),)


def over_channels(x, y):
    z = x.softmax(-2) * y
    return z.sum(), z.amax() * 2


def with_its_rows(x, y):
    z = x.softmax(-1) * y
    return z, z.mean()


def handwritten(x, y):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return ((e / e.sum(-1, keepdim=True) * y).sum() + 1,)


def by_the_largest(x, y):
    z = torch.log_softmax(x, -1)
    return (z / z.amin(),)


FUNCTIONS = [
    *(entropy, divergence, error_of_norm, over_channels, with_its_rows, handwritten),
    by_the_largest,
]
SHAPES = [(37, 103), (3, 5, 64), (512, 1000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values(fn, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), torch.rand(shape)
    for ours, exact in zip(bt.jit("cpu")(fn)(x, y), fn(x.double(), y.double())):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_on_the_gpu(fn, shape: tuple[int, ...]) -> None:
    check(fn, torch.randn(shape), torch.rand(shape), within=2e-5)


@pytest.mark.parametrize("fn", [entropy, divergence, error_of_norm, handwritten])
def test_one_kernel(fn) -> None:
    x, y = torch.randn(512, 1000), torch.rand(512, 1000)
    assert len(bt.jit("cpu")(fn).lower(x, y).compile().kernels) == 1


@needs_gpu
@pytest.mark.parametrize("fn", [entropy, divergence, error_of_norm, over_channels, handwritten])
def test_nothing_as_large_as_the_rows_is_written(fn) -> None:
    x = torch.empty(512, 1000, device="meta")
    program = compiled(fn, x, x)
    assert len(program.launches) == 2  # the rows, and the sum of theirs
    comments = [line for line in program.source("cuda").splitlines() if line.startswith("// ")]
    assert "".join(comments).count("[512, 1000]") <= 2  # the arguments


def test_a_sum_of_elements_stays_whole() -> None:
    x, y = torch.randn(512, 1000), torch.rand(512, 1000)
    program = bt.jit("cpu")(lambda x, y: (x * y).sum()).lower(x, y).compile()
    assert "_of_rows" not in program.source("tir")


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_any_sizes(fn) -> None:
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for shape in ((3, 40), (50, 7), (300, 1000)):
        x, y = torch.randn(shape), torch.rand(shape)
        for ours, exact in zip(jitted(x, y), fn(x.double(), y.double())):
            torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("fn", [entropy, divergence, over_channels])
def test_any_number_of_rows_on_the_gpu(fn) -> None:
    spec = bt.Tensor["n", 100] if fn is not over_channels else bt.Tensor["n", 20, 33]
    program = bt.jit("gpu")(fn).lower(spec, spec).compile()
    for count in (2, 300):
        shape = (count, *map(int, spec.shape[1:]))
        check(fn, torch.randn(shape), torch.rand(shape), within=2e-5, program=program)


@pytest.mark.parametrize("fn", [entropy, divergence, error_of_norm, over_channels])
def test_gradients(fn) -> None:
    x, y = torch.randn(40, 70, requires_grad=True), torch.rand(40, 70)
    exact = x.detach().double().requires_grad_()
    bt.jit("cpu")(fn)(x, y)[0].backward()
    fn(exact, y.double())[0].backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


def sum_by_sum(x, y):
    s = x.softmax(-1)
    return (s * s.sum()).sum(), (s - s.mean()).abs().sum(), (s * y.sum()).sum()


def other_reductions(x, y):
    s = x.softmax(-1)
    return s.std(), (s * y).argmax(), torch.logsumexp(s, (0, 1))


def with_its_dimensions(x, y):
    return x.softmax(0).sum((0, 1), keepdim=True), (x.logsumexp(0, keepdim=True) * y).sum()


def with_sizes(x, y):
    s = x.softmax(-1)
    return (s * y.shape[0]).sum(), (s - y.shape[0] / (x.shape[-1] + 1)).abs().sum()


ODD = [sum_by_sum, other_reductions, with_its_dimensions, with_sizes]


@pytest.mark.parametrize("fn", ODD)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=needs_gpu)])
def test_sums_that_need_more_than_rows(fn, dynamic: bool, target: str) -> None:
    for shape in ((4, 5), (40, 64)):
        x, y = torch.randn(shape), torch.rand(shape)
        jitted = bt.jit(target, dynamic=dynamic)(fn)
        if target == "gpu":
            check(fn, x, y, within=2e-5, program=jitted.lower(x, y).compile())
            continue
        for ours, exact in zip(jitted(x, y), fn(x.double(), y.double())):
            torch.testing.assert_close(ours.to(exact.dtype), exact, rtol=2e-5, atol=1e-6)


@needs_gpu
def test_halves() -> None:
    x, y = torch.randn(64, 200).half(), torch.rand(64, 200).half()
    (found,) = gpu.call(compiled(divergence, x, y), (x, y))
    (exact,) = divergence(x.double(), y.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=1e-2)
