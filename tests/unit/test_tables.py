"""What depends on no argument: one number in all places, a table, or a part of what reads it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tvm.script import tirx as T

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

on_gpu = pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")

SPECIAL = (-0.0, 0.0, float("inf"), -float("inf"), float("nan"), 1.5, -2.0, 3e38)


def plus_zeros(x):
    return x + torch.zeros(8)


def times_zeros(x):
    return x * torch.zeros(8)


def minus_zeros(x):
    return torch.zeros(8) - x


def by_zeros(x):
    return x / torch.zeros(8)


def plus_negative_zeros(x):
    return x + torch.tensor([[-0.0]])


def times_infinity(x):
    return torch.full((8,), float("inf")) * x


def in_halves(x):
    return x.half() * torch.zeros(8, dtype=torch.float16) + torch.full((8,), 0.1).half()


def chosen(x):
    return torch.where(x > 0, torch.zeros(1), x) + torch.full((8,), 0.1) * 3


def integers_by_zeros(x):
    return torch.tensor([7] * 8) // torch.tensor([0.0] * 8) + x


@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=on_gpu)])
@pytest.mark.parametrize(
    "fn",
    [
        *(plus_zeros, times_zeros, minus_zeros, by_zeros, plus_negative_zeros, times_infinity),
        *(in_halves, chosen, integers_by_zeros),
    ],
)
def test_one_number_in_all_places(fn: Any, target: str) -> None:
    """It stands in the kernel as it is: a zero adds, and multiplies, as floats do."""
    x = torch.tensor(SPECIAL)
    if target == "cpu":
        found = bt.jit("cpu")(fn)(x)
    else:
        compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
        assert "x: float32[8], " + fn.__name__ in compiled.source("cuda")
        found = gpu.call(compiled, (x,))
    expected = fn(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(found[is_number].signbit(), expected[is_number].signbit())


def rotated(x):
    t, d = x.shape[-2:]
    angle = torch.outer(torch.arange(t), 1.0 / (10000.0 ** (torch.arange(0, d, 2) / d)))
    cosine, sine = angle.cos(), angle.sin()
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


def with_positions(x):
    t, d = x.shape
    angle = torch.arange(t)[:, None] / 100.0 ** (torch.arange(0, d, 2) / d)
    encoding = torch.zeros(t, d)
    encoding[:, 0::2] = angle.sin()
    encoding[:, 1::2] = angle.cos()
    return x + encoding


@pytest.mark.parametrize("fn", [rotated, with_positions])
@pytest.mark.parametrize("length", [8, 1200, 5000])
def test_tables_are_made_once(fn: Any, length: int) -> None:
    """Also of what counts to more than a thousand."""
    x = torch.randn(length, 16)
    jitted = bt.jit("cpu")(fn)
    text = jitted.lower(x).schedule().as_text()
    assert "T.sin" not in text
    assert "T.cos" not in text
    torch.testing.assert_close(jitted(x), fn(x), rtol=1e-4, atol=1e-4)


@on_gpu
@pytest.mark.parametrize("length", [512, 2048])
def test_tables_have_the_users_names(length: int) -> None:
    x = torch.randn(2, length, 16)
    compiled = bt.jit(gpu.TARGET)(rotated).lower(x).compile()
    [header] = re.findall(r"^// (x: .*)$", compiled.source("cuda"), re.M)
    names = [part.partition(":")[0] for part in re.split(r", (?=\w+:)", header)]
    assert names == ["x", "cosine", "sine", "rotated"]
    torch.testing.assert_close(gpu.call(compiled, (x,)), rotated(x), rtol=1e-4, atol=1e-4)


def windowed(scores):
    n = scores.shape[-1]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    return torch.softmax(scores.masked_fill(~((j <= i) & (i - j < 8)), -torch.inf), -1)


def sloped(scores):
    h, n, _ = scores.shape
    slopes = 2.0 ** (-8.0 * torch.arange(1, h + 1) / h)
    distance = torch.arange(n) - torch.arange(n)[:, None]
    return torch.softmax(scores + slopes[:, None, None] * distance, -1)


def twice_masked(scores):
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    first = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    return torch.softmax((first @ scores).masked_fill(~mask, -torch.inf), -1)


def counted(scores):
    return scores * torch.arange(scores.shape[-1]) - torch.eye(scores.shape[-1])


def relative(scores, table):
    n = scores.shape[-1]
    places = torch.arange(n) - torch.arange(n)[:, None] + n - 1
    return torch.softmax(scores + table[places].permute(2, 0, 1), -1)


@on_gpu
@pytest.mark.parametrize("fn", [windowed, sloped, twice_masked, counted, relative])
def test_what_follows_from_indices_is_no_table_on_a_gpu(fn: Any) -> None:
    scores = torch.randn(4, 24, 24)
    given = (scores, torch.randn(47, 4)) if fn is relative else (scores,)
    compiled = bt.jit(gpu.TARGET)(fn).lower(*given).compile()
    source = compiled.source("cuda")
    tables = re.findall(r"(\w+): \w+\[([\d, ]+)\]", source)
    large = [name for name, sizes in tables if sizes == "24, 24"]
    assert not large
    assert "constant: float32[4, 1, 1]" in source or fn is not sloped
    # What cannot wrap around is computed as it is written.
    assert "uint64_t" not in source
    torch.testing.assert_close(gpu.call(compiled, given), fn(*given), rtol=1e-5, atol=1e-5)


def wrapped(x):
    return x + torch.arange(8, dtype=torch.int32) * 400_000_000, x.long() * 3 + torch.arange(8)


@on_gpu
def test_what_may_wrap_around_does() -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 0, 5, -7, 2**30, 2**31 - 9, 1], dtype=torch.int32)
    compiled = bt.jit(gpu.TARGET)(wrapped).lower(x).compile()
    for found, expected in zip(gpu.call(compiled, (x,)), wrapped(x)):
        assert torch.equal(found, expected)


def beyond_numbers(x):
    huge = torch.full((8,), float("inf"))
    return x + (huge - huge), x * torch.tanh(torch.arange(8) / 7)


def test_tables_are_computed_as_kernels_are() -> None:
    """Infinity less itself is no number; and functions are rounded once."""
    x = torch.randn(8)
    for found, expected in zip(bt.jit("cpu")(beyond_numbers)(x), beyond_numbers(x)):
        torch.testing.assert_close(found, expected, rtol=2e-7, atol=0, equal_nan=True)


def in_branches(x):
    angles = torch.arange(8) / 7
    y = x + angles.cos() if x.sum() > 0 else x - angles.sin() * 3
    return y, angles * 2


@pytest.mark.parametrize("sign", [1, -1])
def test_tables_in_branches(sign: int) -> None:
    x = sign * torch.ones(8)
    for found, expected in zip(bt.jit("cpu")(in_branches)(x), in_branches(x)):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def _squared(x):
    return x * x + 1.5


squared = bt.cuda_function(
    "__device__ float squared(float x) { return x * x + 1.5f; }", name="squared", cpu=_squared
)


def of_users_code(x):
    return x + squared(torch.arange(8).float())


@on_gpu
def test_users_code_of_what_is_known_runs_on_the_gpu() -> None:
    x = torch.randn(4, 8)
    compiled = bt.jit(gpu.TARGET)(of_users_code).lower(x).compile()
    torch.testing.assert_close(gpu.call(compiled, (x,)), x + _squared(torch.arange(8).float()))


def sums(x, dtype=torch.float32):
    a = torch.full((1 << 20,), 0.1).to(dtype) + torch.arange(1 << 20) % 2
    b = (torch.arange(1 << 18) % 7).to(dtype).view(256, 1024)
    product = torch.full((9,), 1.1).to(dtype).prod()
    return x + a.sum() / a.norm(), x + a.var(), b.softmax(-1), b @ b[0], product


def test_sums_of_what_is_known_lose_nothing() -> None:
    x = torch.ones(2)
    for found, expected in zip(bt.jit("cpu")(sums)(x), sums(x.double(), torch.float64)):
        torch.testing.assert_close(found.double(), expected, rtol=3e-7, atol=0)


def scans_of_one_number(x):
    ones = torch.ones(8)
    counts, maxima = ones.cumsum(0), ones.view(2, 4).cummax(1)
    return x + counts, x * torch.full((8,), 2).cumprod(0), *maxima, ones.logcumsumexp(0)


@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=on_gpu)])
def test_scans_of_one_number(target: str) -> None:
    x = torch.randn(8)
    if target == "cpu":
        found = bt.jit("cpu")(scans_of_one_number)(x)
    else:
        compiled = bt.jit(gpu.TARGET)(scans_of_one_number).lower(x).compile()
        found = gpu.call(compiled, (x,))
    for one, other in zip(found, scans_of_one_number(x)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [64, 512])
def test_what_takes_long_is_left_to_the_run(size: int) -> None:
    def f(x):
        a = torch.arange(size * size).view(size, size).float().sin()
        return x + a @ a

    x = torch.randn(size)
    compiled = bt.jit("cpu")(f).lower(x).compile()
    is_left = "T.fma" in compiled.source("tir")
    assert is_left == (size == 512)
    torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-4)


@T.prim_func(s_tir=True)
def fast_exponentials(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("fast"):
            place = T.axis.spatial(8, i)
            b[place] = T.call_pure_extern("float32", "__expf", a[place])


def of_functions_from_elsewhere(x):
    return x + fast_exponentials(torch.arange(8).float())


@on_gpu
def test_functions_from_elsewhere_of_what_is_known_are_called_on_the_gpu() -> None:
    x = torch.randn(8)
    compiled = bt.jit(gpu.TARGET)(of_functions_from_elsewhere).lower(x).compile()
    assert "__expf(" in compiled.source("cuda")
