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
SHAPES = ((40, 1024), (9, 1500), (3, 5, 2111), (7, 16384), (2, 3, 4, 1024), (2, 2, 3, 1003))


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


def loops_around(fn, x: torch.Tensor) -> list[list[int]]:
    """Lengths of the loops that ask, of each place: over parts, and over a part's lines."""
    text = bt.jit("cpu")(fn).source(x, kind="tir")
    found = re.findall(r"for (part|line) in range\(T.int64\((\d+)\)\)", text)
    places: list[list[int]] = []
    for name, length in found:
        if name == "part" or not places or len(places[-1]) == 2:
            places.append([] if name == "part" else [1])
        places[-1].append(int(length))
    return places


def test_all_lines_of_the_next_row_are_asked_for_once(small_cache: None) -> None:
    assert loops_around(rms_norm, torch.randn(9, 1500)) == [[5, 16], [1, 16]]  # 94 lines
    assert loops_around(softmax, torch.randn(9, 1024)) == [[4, 16]]
    assert loops_around(computed, torch.randn(9, 1500)) == [[5, 16], [1, 16]]


def test_several_tensors_share_what_is_asked_for_at_a_time(small_cache: None) -> None:
    def divergence(x, y):
        return (torch.softmax(x, -1) * torch.softmax(y, -1)).sum(-1)

    x = torch.randn(9, 1024)
    text = bt.jit("cpu")(divergence).source(x, x, kind="tir")
    lines = [int(n) for n in re.findall(r"for line in range\(T.int64\((\d+)\)\)", text)]
    assert lines
    assert max(lines) <= 16


@needs_x86
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_rows_of_several_axes_are_read_as_vectors(fn, small_cache: None) -> None:
    """What is asked for is told from where the row is, of which indices may be divisions."""
    source = bt.jit("cpu")(fn).source(torch.randn(2, 3, 4, 1024), kind="asm")
    assert FETCH in source
    assert "vgather" not in source
    assert "vpextrq" not in source


def test_what_processors_do_at_once_leaves_no_time() -> None:
    def rounded(x):
        return torch.round(x / x.abs().amax(-1, keepdim=True))

    def rooted(x):
        return torch.sqrt(x.abs()) / x.abs().sum(-1, keepdim=True)

    assert fetches(rounded, torch.randn(40, 1024)) == 0
    assert fetches(rooted, torch.randn(40, 1024)) == 0


@needs_x86
def test_calls_tell_whether_the_cache_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_cache", lambda: 100 << 10)
    given = bt.Tensor(("n", 1024))
    compiled = bt.jit("cpu")(rms_norm).lower(given).compile()
    assert FETCH in compiled.source("asm")
    for rows in (2, 3, 40, 7):
        x = torch.randn(rows, 1024)
        torch.testing.assert_close(compiled(x).double(), rms_norm(x.double()), rtol=1e-5, atol=1e-5)
