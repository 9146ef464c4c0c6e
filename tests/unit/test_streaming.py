"""Results too large for the caches, which are stored past them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.cpu import caches

STORE = "movnt"  # What x86 names those instructions by.


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_cache", lambda: 1 << 10)


def chain(x, y):
    return F.silu(x * y) + torch.exp(y)


def erf(x, y):
    return torch.erf(x) * y


def normed(x, y):
    return F.layer_norm(x, x.shape[-1:], y[0])


def softmax(x, y):
    return torch.softmax(x * y, -1)


def both(x, y):
    z = x * y
    return z, z.sum(-1)


def sine(x, y):
    return torch.sin(x) * y


def halved(x, y):
    return (x * 0.5).bfloat16(), x + y


def concatenated(x, y):
    return torch.cat([x, y], -1)


def transposed(x, y):
    return x.T + y.T


def scanned(x, y):
    return torch.cumsum(x, -1) * y


FUNCTIONS = (chain, erf, normed, softmax, both, sine, halved, concatenated, transposed, scanned)
SHAPES = ((300, 64), (64, 333), (7, 4099), (4000, 16), (1, 50000))


def as_tuple(results: object) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_are_torchs(fn, shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    exact = as_tuple(fn(x.double(), y.double()))
    actual = as_tuple(bt.jit("cpu")(fn)(x, y))
    for ours, theirs, own in zip(actual, exact, as_tuple(fn(x, y))):
        assert ours.dtype == own.dtype
        tolerance = 1e-2 if own.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=tolerance, atol=1e-4)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_calls_tell_whether_it_fits(fn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of any sizes, which stores some results past the cache, and others not."""
    monkeypatch.setattr(caches, "last_cache", lambda: 100 << 10)
    any_sizes = bt.jit("cpu")(fn)
    for shape in ((2, 3), (4, 5), (300, 64), (64, 333), (7, 4099), (33, 16)):
        x, y = torch.randn(shape), torch.randn(shape)
        exact = as_tuple(fn(x.double(), y.double()))
        for ours, theirs in zip(as_tuple(any_sizes(x, y)), exact):
            tolerance = 1e-2 if ours.dtype == torch.bfloat16 else 2e-5
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=tolerance, atol=1e-4)


def dtypes() -> Iterator[torch.dtype]:
    yield from (torch.float64, torch.float16, torch.bfloat16, torch.bool)
    yield from (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    def either(x, y):
        return torch.where(y, x, x[:1])

    x = (torch.randn(130, 130) * 5).to(dtype)
    y = torch.randn(130, 130) > 0
    assert torch.equal(bt.jit("cpu")(either)(x, y), either(x, y))


def mean(x):
    return x.mean()


def filled(x):
    return torch.full_like(x, 3), x + x


def first_in_each_row(x):
    return x[:, :1].expand(x.shape).contiguous()


def beside_a_constant(x):
    return torch.cat([x, x.new_full((x.shape[0], 64), 3)], -1)


def first_of_all(x):
    return x[:1, :1].expand(x.shape).contiguous()


def rounded(x):
    return x.round()


def largest(x):
    return x.topk(2, -1)[0]


def ordered(x):
    return x.sort(-1)[0]


def part(x):
    return x[::2, -1:]


COPIES = (filled, first_in_each_row, beside_a_constant, first_of_all)
CUT_OFF = (mean, rounded, largest, ordered, part)


@pytest.mark.parametrize("dtype", list(dtypes()), ids=str)
@pytest.mark.parametrize("fn", COPIES, ids=lambda fn: fn.__name__)
def test_copies_of_one_number(fn, dtype: torch.dtype) -> None:
    any_sizes = bt.jit("cpu")(fn)
    for shape in ((8, 8), (9, 8), (300, 64), (70, 333)):
        x = (torch.randn(shape) * 5).to(dtype)
        for ours, theirs in zip(as_tuple(any_sizes(x)), as_tuple(fn(x))):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dynamic", [True, None], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("fn", [*COPIES, *CUT_OFF], ids=lambda fn: fn.__name__)
def test_gradients_that_are_one_number(fn, dtype: torch.dtype, dynamic: bool | None) -> None:
    """Those of a mean, and the zeros of what is cut off or rounded."""
    any_sizes = bt.jit("cpu", dynamic=dynamic)(fn)
    for shape in ((8, 8), (9, 8), (300, 64), (70, 333)):
        x = torch.randn(shape).to(dtype)
        found, expected = (
            torch.autograd.grad(sum(y.sum(dtype=torch.float32) for y in as_tuple(f(own))), own)
            for f, own in ((any_sizes, x.clone().requires_grad_()), (fn, x.requires_grad_()))
        )
        torch.testing.assert_close(found, expected)


def test_instructions() -> None:
    """Where the processor is one that TVM's names and these instructions are known of."""
    x = torch.randn(256, 64)
    for fn in (chain, normed, softmax, halved):
        source = bt.jit("cpu")(fn).lower(x, x).compile().source("asm")
        if "vmovups" not in source:
            pytest.skip("not a processor with AVX")
        assert STORE in source, fn.__name__


def test_instructions_for_copies_of_one_number() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(256, 64).to(dtype)
        source = bt.jit("cpu")(first_of_all).lower(x).compile().source("asm")
        if "ymm" not in source and "zmm" not in source:
            pytest.skip("not a processor with AVX")
        assert STORE in source, dtype


@pytest.mark.parametrize("shape", [("n", 64), ("n", "m")], ids=str)
def test_instructions_of_any_sizes(shape: tuple[str | int, ...]) -> None:
    given = bt.Tensor(shape)
    for fn in (chain, normed, halved) if "m" not in shape else (chain, halved):
        source = bt.jit("cpu")(fn).lower(given, given).compile().source("asm")
        if "vmovups" not in source:
            pytest.skip("not a processor with AVX")
        assert STORE in source, fn.__name__


def test_odd_sizes_keep_whole_lines() -> None:
    x = torch.randn(1_003, 7)
    source = bt.jit("cpu")(chain).lower(x, x).compile().source("asm")
    if "vmovups" not in source:
        pytest.skip("not a processor with AVX")
    assert STORE in source


def test_what_fits_stays_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_cache", lambda: 32 << 20)
    x = torch.randn(256, 64)
    assert STORE not in bt.jit("cpu")(chain).lower(x, x).compile().source("asm")


def test_results_at_any_address() -> None:
    """A kernel stores where it is told to, also beside the start of a line."""

    @bt.kernel("cpu")
    def scaled(x: bt.Tensor["n", "m"], out: bt.Tensor["n", "m"]):  # noqa: F821
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * 2

    x = torch.randn(64, 100)
    memory = torch.zeros(6401)
    scaled(x, memory[1:].view(64, 100))
    assert torch.equal(memory[1:].view(64, 100), x * 2)
    assert memory[0] == 0


def test_threads_see_what_others_stored() -> None:
    """Values go from thread to thread by way of memory, and only once they are there."""

    def twice(x):
        return (x * 2).flip(0) + 1

    x = torch.randn(1 << 14, 8)
    jitted = bt.jit("cpu")(twice)
    for _ in range(50):
        assert torch.equal(jitted(x), twice(x))


def test_the_size_of_the_cache_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    caches.last_cache.cache_clear()
    assert caches.last_cache() >= 1 << 20
    caches.last_cache.cache_clear()
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: "")
    assert caches.last_cache() == 32 << 20
    caches.last_cache.cache_clear()
