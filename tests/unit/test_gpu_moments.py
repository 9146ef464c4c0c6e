"""Variances of rows that registers do not hold, in one pass over their numbers on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def variance(x):
    return (x.var(-1),)


def deviation_and_mean(x):
    return x.std(-1, correction=0), x.mean(-1)


def layer_norm(x):
    return (F.layer_norm(torch.relu(x) - x, x.shape[-1:]),)


def by_hand(x):
    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)
    return (x - mean) * scale, scale


LENGTH = 66000  # of rows that registers do not hold
FUNCTIONS = (variance, deviation_and_mean, layer_norm, by_hand)
KINDS = ("plain", "far from zero", "an outlier first")


def rows(count: int, length: int, kind: str = "plain") -> torch.Tensor:
    x = torch.randn(count, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "far from zero":
        x = x + 300
    elif kind == "an outlier first":
        x[:, 0] = 1e4
    return x


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("count", "length"), [(1, LENGTH), (3, LENGTH + 17235), (2, 2 * LENGTH + 4)]
)
def test_long_rows(fn: Callable[..., Any], kind: str, count: int, length: int) -> None:
    x = rows(count, length, kind).float()
    assert rules(fn, x) == {"LongRows"}
    check(fn, x, within=2e-5 if kind == "plain" else 2e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = rows(2, LENGTH + 8).to(dtype)
    within = 1e-12 if dtype == torch.float64 else 1e-2
    check(layer_norm, x, within=within)
    check(variance, x, within=within)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", [2, 31, 1000, 5000])
def test_lengths_that_calls_tell(fn: Callable[..., Any], length: int) -> None:
    jitted = bt.jit(gpu.TARGET, dynamic=True)(fn)
    program = jitted.lower(torch.empty(300, 4000)).compile()
    assert "_counted" in program.source()
    check(fn, rows(300, length).float(), within=5e-5, program=program)


@pytest.mark.parametrize("place", [0, 5, LENGTH - 1])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_what_is_no_number_stays_so(number: float, place: int) -> None:
    x = rows(3, LENGTH).float()
    x[1, place] = number
    for fn in (variance, by_hand):
        exact = fn(x.double())
        for found, expected in zip(gpu.call(compiled(fn, x), (x,)), exact):
            torch.testing.assert_close(
                found.double(), expected, rtol=1e-4, atol=1e-4, equal_nan=True
            )


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_whose_squares_are_too_large(dynamic: bool) -> None:
    """What they are apart from each other is not, or is what is infinite in torch as well."""
    near = ((rows(1, LENGTH) * 1e-5 + 1) * 2e19).float()
    program = bt.jit(gpu.TARGET, dynamic=dynamic)(by_hand).lower(near).compile()
    (found, scale), (exact, exact_scale) = gpu.call(program, (near,)), by_hand(near.double())
    # The mean has seven digits, and the numbers are apart in the sixth.
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.05)
    torch.testing.assert_close(scale.double(), exact_scale, rtol=0.05, atol=0)
    apart = torch.ones(1, LENGTH)
    apart[0, 40] = 1e25
    program = bt.jit(gpu.TARGET, dynamic=dynamic)(variance).lower(apart).compile()
    assert gpu.call(program, (apart,))[0].item() == torch.inf


@pytest.mark.parametrize(
    ("fn", "count"), [(variance, 2), (deviation_and_mean, 2), (layer_norm, 2), (by_hand, 3)]
)
def test_rows_are_read_once_for_their_moments(fn: Callable[..., Any], count: int) -> None:
    """A launch goes along the rows for the moments, and another for what is normalized."""
    assert len(compiled(fn, torch.empty(4, LENGTH, device="meta")).launches) == count


def test_batch_norm_reads_its_batch_twice() -> None:
    def norm(x, w, b, mean, var):
        return F.relu(F.batch_norm(x, mean, var, w, b, True)), mean, var

    x = torch.randn(8, 6, 80, 80, generator=torch.Generator().manual_seed(0)) * 3 + 5
    w, b = torch.rand(6) + 0.5, torch.randn(6)
    program = compiled(norm, x, w, b, torch.zeros(6), torch.ones(6))
    source = program.source()
    kernels = [text for text in source.split("extern") if "(x + " in text]
    assert len(kernels) == 2
    mean, var = torch.zeros(6), torch.ones(6)
    found = gpu.call(program, (x, w, b, mean, var))
    exact = [y.double() for y in (x, w, b, torch.zeros(6), torch.ones(6))]
    for one, other in zip(found, norm(*exact)):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def with_its_input(x, r):
    """What is normalized is a result, too: later passes read it where it was stored."""
    h = F.silu(x) * r
    return F.layer_norm(h, h.shape[-1:]), h, h.amax(-1)


def with_two_inputs(x, r):
    h = F.silu(x) * r
    g = h + x
    return torch.softmax(g, -1) + h, g, h


@pytest.mark.parametrize("fn", [with_its_input, with_two_inputs], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(300, 2), (5, 33), (40, 1000), (2, LENGTH), (3, LENGTH + 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_later_passes_read(
    fn: Callable[..., Any], shape: tuple[int, int], dynamic: bool
) -> None:
    x, r = rows(*shape).float(), rows(shape[0], shape[1] + 1)[:, 1:].float()
    program = bt.jit(gpu.TARGET, dynamic=dynamic)(fn).lower(x, r).compile()
    assert len(program.launches) <= 3 - dynamic
    check(fn, x, r, within=2e-5, program=program)


def test_other_sums_of_squares_stay_apart() -> None:
    """About what is no mean of them, or of other numbers."""

    def about_half(x):
        return (((x - x.mean(-1, keepdim=True) * 0.5) ** 2).sum(-1),)

    def about_others(x):
        return (((x.abs() - x.mean(-1, keepdim=True)) ** 2).sum(-1),)

    def about_half_the_row(x):
        return (((x - x[:, : LENGTH // 2].sum(-1, keepdim=True) / LENGTH) ** 2).sum(-1),)

    x = rows(3, LENGTH).float() + 2
    for fn in (about_half, about_others, about_half_the_row):
        assert "_counts" not in compiled(fn, x).source()
        check(fn, x, within=1e-5)
