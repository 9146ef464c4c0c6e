"""Group norms with gradients: how many kernels they are, and that they compute what torch does."""

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

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

TARGETS = ("cpu", gpu.TARGET)
WITHIN = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2}
SHAPES = (
    ((16, 6, 8, 8), 2),
    ((3, 7, 5, 3), 1),
    ((3, 7, 5), 7),
    ((2, 6, 9), 3),
    ((2, 6, 3, 2, 5), 2),
    ((5, 8), 4),
)


def norm(groups: int, parameters: str) -> Callable[..., Any]:
    """A group norm with a weight, a bias, both, or none."""

    def neither(x):
        return F.group_norm(x, groups)

    def weight(x, w):
        return F.group_norm(x, groups, w)

    def bias(x, b):
        return F.group_norm(x, groups, None, b)

    def both(x, w, b):
        return F.group_norm(x, groups, w, b)

    return {"": neither, "w": weight, "b": bias, "wb": both}[parameters]


def exactly(
    groups: int, parameters: str, args: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What torch gives in float64, and what that is of."""
    given = [x.detach().double().requires_grad_() for x in args]
    if parameters == "b":  # torch's own way back fails without a weight
        x, b = given
        return F.group_norm(x, groups, torch.ones_like(b), b), given
    return norm(groups, parameters)(*given), given


def activated(x, w, b):
    return F.silu(F.group_norm(x + 1, 2, w, b))


def tensors(
    shape: tuple[int, ...], count: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """An input, and so many tensors of a number for each channel."""
    torch.manual_seed(0)
    sizes = [shape, *[shape[1:2]] * count]
    return [(torch.randn(size) + 0.5).to(dtype).requires_grad_() for size in sizes]


def close(found: Any, expected: Any, within: float) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=within * max(scale, 1e-3))


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "gpu"])
@pytest.mark.parametrize("parameters", ["", "w", "b", "wb"])
@pytest.mark.parametrize("shape", [(16, 64, 64, 64), (3, 6, 7)], ids=str)
def test_the_way_forward_is_one_kernel(target: Any, parameters: str, shape: Any) -> None:
    args = tensors(shape, len(parameters))
    scheduled = bt.jit(target)(norm(2, parameters)).lower(*args).schedule()
    assert len(scheduled.kernels) == 1


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "gpu"])
@pytest.mark.parametrize("shape", [(16, 64, 64, 64), (3, 6, 7)], ids=str)
def test_without_weights_the_way_back_is_one_kernel(target: Any, shape: Any) -> None:
    lowered = bt.jit(target)(norm(2, "")).lower(*tensors(shape, 0))
    assert len(lowered.backward.schedule().kernels) == 1


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "gpu"])
def test_what_is_around_it_is_part_of_the_kernel(target: Any) -> None:
    scheduled = bt.jit(target)(activated).lower(*tensors((4, 8, 16, 16), 2)).schedule()
    assert len(scheduled.kernels) == 1


@pytest.mark.parametrize("parameters", ["", "wb"])
def test_what_is_rounded_is_not_kept_before(parameters: str) -> None:
    args = tensors((4, 8, 32, 32), len(parameters), torch.bfloat16)
    scheduled = bt.jit("cpu")(norm(2, parameters)).lower(*args).schedule()
    locals_ = re.findall(r".*alloc_buffer.*", scheduled.as_text())
    assert locals_
    assert not any("1024" in line for line in locals_)


def test_a_symbolic_batch_is_one_kernel() -> None:
    jitted = bt.jit("cpu", dynamic=True)(norm(2, "wb"))

    def marked(n: int) -> list[torch.Tensor]:
        return tensors((n, 6, 8, 8), 2)

    assert len(jitted.lower(*marked(5)).schedule().kernels) <= 2
    for n in (5, 3, 8):
        args = marked(n)
        found = jitted(*args)
        expected, exact = exactly(2, "wb", args)
        close(found, expected, 1e-5)
        ours = torch.autograd.grad(found.square().sum(), args)
        theirs = torch.autograd.grad(expected.square().sum(), exact)
        for one, other in zip(ours, theirs):
            close(one, other, 1e-4)


@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize(
    ("parameters", "dtype"),
    [
        *(("wb", dtype) for dtype in WITHIN),
        *(("", dtype) for dtype in WITHIN),
        ("w", torch.float32),
        ("b", torch.float32),
    ],
    ids=str,
)
def test_gradients(shape: Any, groups: int, parameters: str, dtype: torch.dtype) -> None:
    fn = norm(groups, parameters)
    args = tensors(shape, len(parameters), dtype)
    found = bt.jit("cpu")(fn)(*args)
    expected, exact = exactly(groups, parameters, args)
    assert found.dtype == dtype
    grad = torch.randn(shape).to(dtype)
    ours = torch.autograd.grad(found, args, grad)
    theirs = torch.autograd.grad(expected, exact, grad.double())
    for one, other in zip((found, *ours), (expected, *theirs)):
        close(one.detach(), other.detach(), WITHIN[dtype])


@needs_gpu
@pytest.mark.parametrize(("shape", "groups"), SHAPES[:2], ids=str)
@pytest.mark.parametrize("parameters", ["", "b", "wb"])
def test_gradients_for_the_gpu(shape: Any, groups: int, parameters: str) -> None:
    fn = norm(groups, parameters)
    args = tensors(shape, len(parameters))
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    grad = torch.randn(shape)
    expected, exact = exactly(groups, parameters, args)
    found = gpu.gradients(compiled, tuple(args), {0: grad})
    for one, other in zip(found, torch.autograd.grad(expected, exact, grad.double())):
        close(one, other, 1e-4)


@pytest.mark.parametrize("parameters", ["", "wb"])
def test_gradients_of_gradients(parameters: str) -> None:
    args = [x.detach().double().requires_grad_() for x in tensors((2, 4, 3), len(parameters))]
    assert torch.autograd.gradgradcheck(bt.jit("cpu")(norm(2, parameters)), args)


@pytest.mark.parametrize("parameters", ["", "wb"])
def test_no_elements(parameters: str) -> None:
    fn = norm(2, parameters)
    args = tensors((0, 6, 4), len(parameters))
    found = bt.jit("cpu")(fn)(*args)
    assert found.shape == (0, 6, 4)
    for one, arg in zip(torch.autograd.grad(found.sum(), args), args):
        torch.testing.assert_close(one, torch.zeros_like(arg))
