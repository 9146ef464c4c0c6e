"""Rows that are fetched before they are read."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.cpu import caches

FETCH = "prefetcht0"  # What x86 names the instruction by.


def rms_norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def softmax(x):
    return torch.softmax(x, -1)


def logsumexp(x):
    return torch.logsumexp(x, -1)


def computed(x):
    """What is normed is computed before: only the first loop reads what is given."""
    y = torch.exp(torch.sin(x))
    return y / y.sum(-1, keepdim=True)


FUNCTIONS = (rms_norm, layer_norm, softmax, logsumexp, computed)
SHAPES = ((40, 1024), (9, 1500), (3, 5, 2111), (7, 16384))


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_cache", lambda: 1 << 10)


def fetches(fn, x: torch.Tensor) -> int:
    return len(re.findall(FETCH, bt.jit("cpu")(fn).source(x, kind="asm")))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values_are_torchs(fn, shape: tuple[int, ...], small_cache: None) -> None:
    x = torch.randn(shape)
    ours, exact = bt.jit("cpu")(fn)(x), fn(x.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="not the code of an x86"
)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_rows_are_asked_for(fn, small_cache: None) -> None:
    assert fetches(fn, torch.randn(40, 1024)) >= 1


@pytest.mark.parametrize("shape", [(40, 1000), (7, 16400)], ids=str)
def test_short_and_long_rows_are_not(shape: tuple[int, int], small_cache: None) -> None:
    """Fewer bytes than 4096, and more than 64 KB."""
    assert fetches(softmax, torch.randn(shape)) == 0


def test_what_the_last_cache_holds_is_not() -> None:
    assert fetches(softmax, torch.randn(40, 1024)) == 0


def test_one_loop_over_a_row_is_left_alone(small_cache: None) -> None:
    """The processor fetches what follows by itself."""

    def row_sums(x):
        return x.sum(-1)

    def doubled(x):
        return x * 2

    assert fetches(row_sums, torch.randn(40, 1024)) == 0
    assert fetches(doubled, torch.randn(40, 1024)) == 0


def test_all_lines_of_the_next_row_are_asked_for_once(small_cache: None) -> None:
    text = bt.jit("cpu")(rms_norm).source(torch.randn(9, 1500), kind="tir")
    loops = re.findall(r"for (part|line) in range\(T.int64\((\d+)\)\)", text)
    assert loops == [("part", "5"), ("line", "16"), ("line", "16")]  # 94 lines of 64 bytes
