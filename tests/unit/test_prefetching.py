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


needs_x86 = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="not the code of an x86"
)

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


@needs_x86
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_rows_are_asked_for(fn, small_cache: None) -> None:
    assert fetches(fn, torch.randn(40, 1024)) >= 1


@pytest.mark.parametrize(
    ("fn", "shape"),
    [(softmax, (40, 700)), (softmax, (3, 65600)), (rms_norm, (40, 700)), (rms_norm, (7, 16400))],
    ids=["short", "long", "short, written", "long, written"],
)
def test_short_and_long_rows_are_not(fn, shape: tuple[int, int], small_cache: None) -> None:
    """Fewer bytes than 3 KB; more than 256 KB, or 64 KB where nothing is computed meanwhile."""
    assert fetches(fn, torch.randn(shape)) == 0


@needs_x86
def test_what_the_last_cache_holds_is_where_there_is_time() -> None:
    assert fetches(softmax, torch.randn(40, 1024)) >= 1
    assert fetches(rms_norm, torch.randn(40, 1024)) == 0


@needs_x86
def test_any_number_of_rows() -> None:
    compiled = bt.jit("cpu")(softmax)
    for rows in (1, 2, 3, 40):
        x = torch.randn(rows, 1024)
        exact = torch.softmax(x.double(), -1)
        torch.testing.assert_close(compiled(x).double(), exact, rtol=1e-5, atol=1e-7)
    assert FETCH in compiled.source("asm")


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
