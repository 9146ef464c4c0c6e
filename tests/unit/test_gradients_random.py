"""Gradients of what draws random numbers: for the same seed, torch's numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import babytriton as bt

SHAPES = {"dropout2d": (3, 5, 4, 2), "dropout3d": (3, 5, 2, 2, 2)}
DROPOUTS = (
    F.dropout,
    F.alpha_dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.feature_alpha_dropout,
)


def _drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator).to(dtype)


def _run(fn: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a function gives after a seed, the gradient, and the next random number."""
    x = x.clone().requires_grad_()
    torch.manual_seed(5)
    result = fn(x)
    (grad,) = torch.autograd.grad((result * torch.arange(result.numel()).view_as(result)).sum(), x)
    return result.detach(), grad, torch.rand(())


def _check(fn: Any, x: torch.Tensor, **limits: float) -> None:
    compiled = bt.jit("cpu")(fn)
    for one, other in zip(_run(compiled, x), _run(fn, x)):
        torch.testing.assert_close(one, other, **limits)


@pytest.mark.parametrize("fn", DROPOUTS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(
    ("p", "training"), [(0.5, True), (0.3, True), (0.0, True), (1.0, True), (0.5, False)]
)
def test_dropout(fn: Any, p: float, training: bool) -> None:
    def dropped(x):
        return fn(x * 2, p, training) + 1

    _check(dropped, _drawn(SHAPES.get(fn.__name__, (3, 5, 4))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fn", [F.dropout, F.alpha_dropout], ids=lambda fn: fn.__name__)
def test_dropout_in_other_precisions(fn: Any, dtype: torch.dtype) -> None:
    # Where a sum nearly vanishes, what was rounded before counts.
    limits = {"rtol": 0.016, "atol": 0.01} if dtype == torch.bfloat16 else {}
    _check(lambda x: fn(x, 0.3, True), _drawn((3, 5, 4), dtype), **limits)


@pytest.mark.parametrize(("fn", "shape"), [(F.dropout1d, (5, 4)), (F.dropout3d, (5, 2, 2, 2))])
@pytest.mark.parametrize("p", [0.5, 0.0])
def test_dropout_of_channels_without_a_batch(fn: Any, shape: tuple[int, ...], p: float) -> None:
    _check(lambda x: fn(x, p), _drawn(shape))


def test_functions_of_torch_itself() -> None:
    def dropped(x):
        x = torch.dropout(x, 0.5, True) + torch.dropout(x, p=0.5, train=True)
        x = torch.alpha_dropout(x, 0.5, train=True) + torch.native_dropout(x, 0.5, True)[0]
        return torch.feature_dropout(x, 0.5, True) + torch.feature_alpha_dropout(x, 0.5, True)

    _check(dropped, _drawn((3, 5, 4)))


def test_dropout_in_place() -> None:
    def dropped(x):
        y = x * 2
        F.dropout(y, 0.5, inplace=True)
        return y

    _check(dropped, _drawn((3, 5)))


def test_module_of_dropout() -> None:
    _check(nn.Sequential(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.4)), _drawn((3, 5)))


def test_nothing_is_drawn_on_the_way_back() -> None:
    def dropped(x):
        return F.dropout(x) * F.rrelu(x, training=True)

    x = _drawn((3, 5)).requires_grad_()
    (result,) = [bt.jit("cpu")(dropped)(x)]
    before = torch.get_rng_state()
    result.sum().backward()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("bounds", [(1 / 8, 1 / 3), (0.25, 0.25), (-0.5, 2.0)])
@pytest.mark.parametrize("training", [True, False])
def test_rrelu(bounds: tuple[float, float], training: bool) -> None:
    lower, upper = bounds
    x = _drawn((3, 50))
    x[0, :3] = 0
    _check(lambda x: F.rrelu(x, lower, upper, training), x)


def test_a_gradient_of_a_gradient_is_of_the_same_numbers() -> None:
    def dropped(x):
        return F.dropout(x * x, 0.5) ** 2

    def twice(fn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = _drawn((3, 50)).requires_grad_()
        torch.manual_seed(5)
        (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second

    for one, other in zip(twice(bt.jit("cpu")(dropped)), twice(dropped)):
        torch.testing.assert_close(one, other)
