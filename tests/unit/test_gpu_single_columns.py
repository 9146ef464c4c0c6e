"""Reductions of one column among several: nothing that is added up lies together in memory."""

from __future__ import annotations

import math
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


def largest(u):
    return u[:, 0].abs().max()


def mean_of_squares(u):
    return u[:, :1].square().mean()


def of_two_columns(u):
    return F.mse_loss(u[:, 0], u[:, 2]), (u[:, 1] > 0).any()


def of_a_column_and_a_vector(u):
    return F.mse_loss(u[:, 1], u.sum(1))


def log_sum(u):
    return torch.logsumexp(u[:, 3], 0)


def softmax(u):
    return u[:, 0].softmax(0)


def place_of_largest(u):
    return u[:, 2].exp().argmax()


def of_matrices(u):
    return u.view(4, -1, 5)[..., 0].square().mean(-1)


def of_every_third(u):
    return u[::3, 4].norm()


FUNCTIONS = [largest, mean_of_squares, of_two_columns, of_a_column_and_a_vector, log_sum]
FUNCTIONS += [softmax, place_of_largest, of_matrices, of_every_third]


def launched(fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    return list(bt.jit(gpu.TARGET, dynamic=False)(fn).lower(*args).compile().launches)


@needs_gpu
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [4, 1000, 40004])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values(fn: Callable[..., Any], rows: int, dynamic: bool) -> None:
    u = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows))
    compiled = bt.jit(gpu.TARGET, dynamic=dynamic)(fn).lower(u).compile()
    found, exact = gpu.call(compiled, (u,)), fn(u.double())
    pairs = zip(found, exact) if isinstance(found, tuple) else [(found, exact)]
    for one, other in pairs:
        torch.testing.assert_close(one.to(other.dtype), other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_all_processors_are_busy(fn: Callable[..., Any]) -> None:
    first, *_ = launched(fn, torch.empty(4_000_000, 5, device="meta"))
    assert math.prod(first.grid) >= 244
    assert math.prod(first.block) >= 256


def test_short_ones_are_a_warps() -> None:
    def means(u):
        return u[..., 0].square().mean(-1)

    [only] = launched(means, torch.empty(4096, 100, 16, device="meta"))
    assert only.grid[0] >= 512
