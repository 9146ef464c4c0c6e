"""Rows on the way to a result, kept where the result will be."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import babytriton as bt


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = torch.exp(x)
    total = e.sum(-1, keepdim=True)
    return e / total, e * total


def earlier_and_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = torch.exp(x)
    y = e * e.sum(-1, keepdim=True)
    return y, e - y.sum(-1, keepdim=True)


def of_another_dtype(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x)
    return (e / e.sum(-1, keepdim=True)).double()


def backwards(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).flip(-1)


def locals_of(fn: Any, x: torch.Tensor) -> list[str]:
    """The locals that hold a row."""
    source = bt.jit("cpu", dynamic=False)(fn).lower(x).compile().source("tir")
    pattern = rf"(\w+) = T\.alloc_buffer\(.*int64\({x.shape[-1]}\),?\)"
    return re.findall(pattern, source)


@pytest.mark.parametrize("shape", [(7, 100), (64, 1003), (3, 40000)])
@pytest.mark.parametrize("fn", [softmax, by_hand, two_results, earlier_and_later, backwards])
def test_values(fn: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found, exact = bt.jit("cpu", dynamic=False)(fn)(x), fn(x.double())
    for one, other in zip(
        found if isinstance(found, tuple) else (found,),
        exact if isinstance(exact, tuple) else (exact,),
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "rows"), [(softmax, 0), (by_hand, 0), (two_results, 0), (of_another_dtype, 1)]
)
def test_no_row_besides_the_result(fn: Any, rows: int) -> None:
    assert len(locals_of(fn, torch.randn(64, 1003))) == rows


def test_results_past_the_caches_are_not_read_again() -> None:
    x = torch.empty(8192, 1024)
    assert len(locals_of(softmax, x)) == 1
