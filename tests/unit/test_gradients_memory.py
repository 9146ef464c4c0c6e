"""Gradients through memory that is written to, however torch lays out these and the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.unit.test_gradients import double


def column(x: torch.Tensor) -> torch.Tensor:
    m = x.t().clone()
    m[..., ::2] = x[0, 0]
    return m.contiguous()


def flipped_rows(x: torch.Tensor) -> torch.Tensor:
    m = x.clone()
    n = m.flip(0)
    m[0] = n[0] * 2
    return m.sum() * x


def images(x: torch.Tensor) -> torch.Tensor:
    m = x.reshape(1, 2, 2, 3).clone(memory_format=torch.channels_last)
    m[..., ::2] = x[0, 0]
    n = m.flip(0)
    m[0] = n[0] * 2
    return m


def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m = x.reshape(2, 2, 3).permute(2, 0, 1).clone()
    m[1:] += 1.5 * m[0].clone()
    m.select(-1, 1).mul_(x[0, 0])
    return m.sum(0), m[0]


def diagonal(x: torch.Tensor) -> torch.Tensor:
    m = x.t() * 2
    m.diagonal().mul_(x[1, 1] * 3)
    return torch.softmax(m, -1).contiguous()


def like(x: torch.Tensor) -> torch.Tensor:
    m = torch.empty_like(x.t())
    m[...] = x.t() * 3
    m[1] *= x[0, 1]
    return m.reshape(-1)


def stepwise(x: torch.Tensor) -> torch.Tensor:
    m = torch.zeros_like(x.t())
    for i in range(40):
        if m.sum() < 5:
            m[1:] += x.t()[1:] * x[0, 0] + i * 0.01
    return m.contiguous()


@pytest.mark.parametrize("fn", [column, flipped_rows, images, turned, diagonal, like, stepwise])
@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_that_lies_otherwise_than_gradients(
    fn: Callable[..., Any], dynamic: bool | None
) -> None:
    def gradients(of: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
        found = of(x)
        results = found if isinstance(found, tuple) else (found,)
        weights = [torch.arange(1.0, y.numel() + 1).reshape(y.shape) for y in results]
        total = sum((y * y * w).sum() for y, w in zip(results, weights))
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return [*results, first, *torch.autograd.grad((first * first).sum(), x)]

    x = double(4, 3)
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    torch.testing.assert_close(gradients(compiled, x), gradients(fn, x))
