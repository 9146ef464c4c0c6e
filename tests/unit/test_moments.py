"""Variances from one pass over the numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt


def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def norm_of_sum(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.relu(x + 1) - x, (x.shape[-1],))


def group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x.reshape(-1, 4, 6, 50), 2)


def by_hand(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, ((x - mean) ** 2).mean(-1)


def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = torch.exp(x * 0.5)
    return y, y.std(-1), y.mean(-1)


KINDS = ("plain", "far from zero", "outliers first", "rising")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CASES = [
    *product((variance, layer_norm, norm_of_sum, group_norm), DTYPES, KINDS),
    *product((by_hand,), DTYPES[:2], KINDS),  # which is rounded on the way in bfloat16
    *product((several,), DTYPES, KINDS[:1]),  # the exponentials of others are infinite
]


def rows(kind: str, dtype: torch.dtype, length: int = 1200) -> torch.Tensor:
    """Rows whose first numbers tell more or less of their mean."""
    x = torch.randn(13, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "far from zero":
        x = x * 0.01 + 100
    elif kind == "outliers first":
        x[::2, :16] += 1000
    elif kind == "rising":
        x = x + torch.linspace(-5, 20, length)
    return x.to(dtype)


def tuple_of(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(("fn", "dtype", "kind"), CASES)
def test_as_exact_as_two_passes(fn: Any, dtype: torch.dtype, kind: str) -> None:
    x = rows(kind, dtype)
    jitted = bt.jit("cpu", dynamic=False)(fn)
    assert "centre" in jitted.lower(x).compile().source("tir")
    # The digits of numbers far from zero are cancelled in every way.
    eps = torch.finfo(dtype).eps * (1e4 if kind == "far from zero" else 1)
    for found, exact in zip(tuple_of(jitted(x)), tuple_of(fn(x.double()))):
        within = 32 * eps if dtype != torch.bfloat16 else 2 * eps
        torch.testing.assert_close(found.double(), exact, rtol=within, atol=within)


@pytest.mark.parametrize("length", [1, 2, 15, 127, 128, 129, 1003])
def test_rows_of_any_length(length: int) -> None:
    x = rows("plain", torch.float32, length)
    jitted = bt.jit("cpu", dynamic=False)(by_hand)
    assert ("centre" in jitted.lower(x).compile().source("tir")) == (length >= 128)
    for found, exact in zip(jitted(x), by_hand(x.double())):
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("place", [0, 5, 700, 1199])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_what_is_no_number_stays_so(number: float, place: int) -> None:
    """Only the rows with it; and a mean is infinite, though the variance is no number."""
    x = rows("plain", torch.float32)
    x[3, place] = number
    for fn in (variance, layer_norm, by_hand):
        for found, exact in zip(tuple_of(bt.jit("cpu")(fn)(x)), tuple_of(fn(x.double()))):
            torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_equal_numbers_have_no_variance() -> None:
    x = torch.full((3, 1000), 3.3)
    assert torch.equal(bt.jit("cpu")(variance)(x), torch.zeros(3))


def test_other_sums_of_squares_stay_apart() -> None:
    """About what is no mean of them, or of other numbers."""

    def about_half(x: torch.Tensor) -> torch.Tensor:
        return ((x - x.mean(-1, keepdim=True) * 0.5) ** 2).sum(-1)

    def about_others(x: torch.Tensor) -> torch.Tensor:
        return ((x.abs() - x.mean(-1, keepdim=True)) ** 2).sum(-1)

    def about_half_the_row(x: torch.Tensor) -> torch.Tensor:
        return ((x - x[:, :600].sum(-1, keepdim=True) / 1200) ** 2).sum(-1)

    x = rows("rising", torch.float32)
    for fn in (about_half, about_others, about_half_the_row):
        jitted = bt.jit("cpu", dynamic=False)(fn)
        assert "centre" not in jitted.lower(x).compile().source("tir")
        torch.testing.assert_close(jitted(x).double(), fn(x.double()), rtol=1e-6, atol=0)
