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


# Programs that look like variances, and are none.


def of_what_was_there(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        total = 0.0
        squares = 0.0
        for k in range(400):
            total += y[i, k]
            y[i, k] = x[i, k] * 3.0
        for k in range(400):
            squares += (y[i, k] - total / 400) * (y[i, k] - total / 400)
        out[i] = squares


def of_running_sums(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        total = 0.0
        squares = 0.0
        for k in range(400):
            total += x[i, k]
            y[i, k] = total
        for k in range(400):
            squares += (x[i, k] - total / 400) * (x[i, k] - total / 400)
        out[i] = squares


def of_the_last(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        total = 0.0
        squares = 0.0
        e = 0.0
        for k in range(400):
            e = x[i, k] * 2.0
            total += e
        for _ in range(400):
            squares += (e - total / 400) * (e - total / 400)
        out[i] = squares


def about_the_mean_before(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        mean = 0.0
        for _ in range(3):
            total = 0.0
            squares = 0.0
            for k in range(400):
                total += x[i, k]
                y[i, 399 - k] = x[i, k]
            for k in range(400):
                squares += (x[i, k] - mean) * (x[i, k] - mean)
            mean = total / 400
            out[i] = squares
            x[i, 0] = x[i, 0] + 300.0


def of_others(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        total = 0.0
        squares = 0.0
        for k in range(300):
            total += x[i, k]
        for k in range(100, 400):
            squares += (x[i, k] - total / 300) * (x[i, k] - total / 300)
        out[i] = squares


def about_nearly_the_mean(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(13):
        total = 0.0
        squares = 0.0
        for k in range(400):
            total += x[i, k]
        for k in range(400):
            squares += (x[i, k] - total / 400.0003) * (x[i, k] - total / 400.0003)
        out[i] = squares


@pytest.mark.parametrize(
    "fn",
    [
        *(of_what_was_there, of_running_sums, of_the_last),
        *(about_the_mean_before, of_others, about_nearly_the_mean),
    ],
)
def test_what_only_looks_like_a_variance(fn: Any) -> None:
    x, y = rows("rising", torch.float64, 400), rows("plain", torch.float64, 400)
    given, wanted = (
        (x.clone(), y.clone(), torch.zeros(13).double()),
        (x, y, torch.zeros(13).double()),
    )
    bt.kernel("cpu")(fn)(*given)
    fn(*wanted)
    for found, exact in zip(given, wanted):
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


def test_numbers_made_of_others_of_the_loop() -> None:
    """Which are not there yet when the first of them are looked at."""

    def chained(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(13):
            total = 0.0
            squares = 0.0
            for k in range(400):
                y[i, k] = x[i, k] * 2.0
                z[i, k] = y[i, k] + 1.0
                total += z[i, k]
            for k in range(400):
                squares += (z[i, k] - total / 400) * (z[i, k] - total / 400)
            out[i] = squares

    x, kernel, found = rows("plain", torch.float32, 400), bt.kernel("cpu")(chained), []
    for before in (0.0, 1.0, float("nan")):
        out = torch.zeros(13)
        kernel(x, torch.full_like(x, before), torch.full_like(x, before), out)
        found.append(out)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    exact = (x.double() * 2).var(-1) * 399
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-6, atol=0)


def test_parts_of_other_shapes() -> None:
    def rectangles(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, :10, :20], x[:, :20, :10]
        return ((b - a.mean((1, 2), keepdim=True)) ** 2).sum((1, 2))

    x = rows("rising", torch.float32, 900).reshape(13, 30, 30)
    found = bt.jit("cpu", dynamic=False)(rectangles)(x)
    torch.testing.assert_close(found.double(), rectangles(x.double()), rtol=1e-6, atol=0)
