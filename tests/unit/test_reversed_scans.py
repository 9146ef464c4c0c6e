"""Running sums from the last element on, as torch writes them: values, gradients, kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt

SHAPES = ((4, 64), (1, 4097), (9, 1000), (300, 7), (33,), (8, 16), (17, 50), (3, 5, 100))


def sums(x):
    return x.flip(-1).cumsum(-1).flip(-1)


def sums_of_columns(x):
    return x.flip(0).cumsum(0).flip(0)


def products(x):
    return x.flip(-1).cumprod(-1).flip(-1)


def wider(x):
    return x.flip(-1).cumsum(-1, dtype=torch.float64).flip(-1)


def turned(x):
    return x.flip(0).movedim(0, -1).cumsum(-1).movedim(-1, 0).flip(0)


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    found = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ((found - 0.5) * 4).to(dtype)


FUNCTIONS = (sums, sums_of_columns, products)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_kernel(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = numbers(shape, dtype)
        program = bt.jit("cpu")(fn).lower(x).compile()
        assert len(program.kernels) == 1
        exact = fn(x.double()) if dtype.is_floating_point else fn(x)
        torch.testing.assert_close(program(x), exact.to(program(x).dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    x = numbers((12, 100), dtype)
    expected = sums(x.double()).to(dtype)
    torch.testing.assert_close(bt.jit("cpu")(sums)(x), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fn", [wider, turned], ids=lambda fn: fn.__name__)
def test_numbers_on_their_way(fn: Callable[..., Any]) -> None:
    """Nothing is turned over, also where a number becomes another one, or goes elsewhere, first."""
    x = numbers((12, 100), torch.float32)
    program = bt.jit("cpu")(fn).lower(x).compile()
    assert "flip" not in program.source("tir")
    torch.testing.assert_close(program(x), fn(x))


def test_sizes_that_calls_tell() -> None:
    fn = bt.jit("cpu", dynamic=True)(sums)
    for shape in ((5, 31), (2, 2), (3, 1000)):
        x = numbers(shape)
        torch.testing.assert_close(fn(x), sums(x))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_of_running_sums(dim: int) -> None:
    def running(x):
        return x.cumsum(dim)

    program = bt.jit("cpu")(running)
    x, grad = numbers((6, 40, 20)).requires_grad_(), numbers((6, 40, 20)) + 1
    (found,) = torch.autograd.grad(program(x), x, grad)
    (expected,) = torch.autograd.grad(running(x), x, grad)
    torch.testing.assert_close(found, expected)
    assert len(program.lower(x).compile().backward.kernels) == 1


def test_gradients_of_sums_from_the_end() -> None:
    program = bt.jit("cpu")(sums)
    x, grad = numbers((7, 40)).requires_grad_(), numbers((7, 40)) + 1
    (found,) = torch.autograd.grad(program(x), x, grad)
    torch.testing.assert_close(found, grad.cumsum(-1))
    assert len(program.lower(x).compile().backward.kernels) == 1


def both_axes(x):
    return x.flip((0, 1)).cumsum(1).flip((0, 1))


def test_other_axes_are_turned_over_as_before() -> None:
    x = numbers((8, 20))
    program = bt.jit("cpu")(both_axes).lower(x).compile()
    torch.testing.assert_close(program(x), both_axes(x))
    assert len(program.kernels) < len(bt.jit("cpu")(back_along_another).lower(x).compile().kernels)


def other_axis(x):
    return x.flip(0).cumsum(-1).flip(0)


def back_along_another(x):
    return x.flip(-1).cumsum(-1).flip(0)


def once(x):
    return x.flip(-1).cumsum(-1)


def afterwards(x):
    return x.cumsum(-1).flip(-1)


def twice(x):
    return x.flip(-1).cumsum(-1).flip(-1).flip(-1).cumsum(-1).flip(-1)


def read_before(x):
    total = x.flip(-1).cumsum(-1)
    return total.flip(-1) + total, total


def of_a_transpose(x):
    y = x.flip(0)
    return y.T.cumsum(0).flip(0), y.T.cumsum(1).flip(1), y


@pytest.mark.parametrize(
    "fn",
    [other_axis, back_along_another, once, afterwards, twice, read_before, of_a_transpose],
    ids=lambda fn: fn.__name__,
)
def test_what_is_something_else(fn: Callable[..., Any]) -> None:
    x = numbers((12, 24))
    torch.testing.assert_close(bt.jit("cpu")(fn)(x), fn(x))
