"""Indices that count along an axis, as torch.arange does: each row is taken by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def likelihood(x, y):
    return -torch.log_softmax(x, -1)[torch.arange(x.shape[0]), y].mean()


def last(x, lengths):
    return x[torch.arange(x.shape[0]), lengths - 1]


def chosen(x, i):
    return x[torch.arange(x.shape[0])[:, None], i]


def tokens(x, y):
    b, t, _ = x.shape
    return torch.log_softmax(x, -1)[torch.arange(b)[:, None], torch.arange(t), y]


def columns(x, i):
    return x[i, torch.arange(x.shape[1])]


def apart(x, i):
    return x[torch.arange(x.shape[0])[:, None], :, i]


def expanded(x, i):
    rows = torch.arange(x.shape[0]).unsqueeze(1).expand(-1, i.shape[1])
    return x[rows, i]


def crossed(x, i):
    rows, _ = torch.meshgrid(torch.arange(i.shape[0]), torch.arange(i.shape[1]), indexing="ij")
    return x[rows, i]


def single(x, i):
    return x[torch.arange(1), i], x[torch.arange(1).expand(6), i], x[torch.arange(1)[:, None], i]


def shorter(x, i):
    return x[torch.arange(3), i[:3]], x[torch.arange(2, 5), i[:3]], x[torch.arange(0, 6, 2), i[3:]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [single, shorter])
def test_what_counts_otherwise_is_read(fn, dynamic: bool) -> None:
    x, i = torch.randn(6, 9), torch.randint(-9, 9, (6,))
    for found, expected in zip(bt.jit("cpu", dynamic=dynamic)(fn)(x, i), fn(x, i)):
        assert torch.equal(found, expected)


READS = {
    "likelihood": (likelihood, (6, 9), (6,), 9, 1, 2),
    "last": (last, (6, 9, 5), (6,), 9, 1, 1),
    "chosen": (chosen, (6, 9), (6, 4), 9, None, 1),
    "tokens": (tokens, (3, 4, 9), (3, 4), 9, 1, 1),
    "columns": (columns, (9, 6), (6,), 9, 1, 1),
    "apart": (apart, (6, 5, 9), (6, 4), 9, None, 1),
    "expanded": (expanded, (6, 9), (6, 4), 9, None, 1),
    "crossed": (crossed, (6, 9), (6, 4), 9, None, 1),
}


def arguments(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    _, shape, picks, size, _, _ = READS[name]
    least = 1 if name == "last" else -size
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    return x, torch.randint(least, size, picks)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READS)
def test_reads_and_their_gradients(name: str, dynamic: bool) -> None:
    fn, (x, i) = READS[name][0], arguments(name)
    jitted = bt.jit("cpu", dynamic=dynamic)(fn)
    found, expected = jitted(x, i), fn(x, i)
    assert torch.allclose(found, expected)
    grad = torch.randn_like(expected)
    [found_grad], [expected_grad] = (torch.autograd.grad(y, x, grad) for y in (found, expected))
    assert torch.allclose(found_grad, expected_grad)


@needs_gpu
@pytest.mark.parametrize("name", READS)
def test_kernels_of_reads(name: str) -> None:
    """None reads a table of the numbers, and the way back adds nothing up for one place a row."""
    fn, _, _, _, back, launches = READS[name]
    x, i = arguments(name)
    x = x.detach().float().requires_grad_()
    compiled = bt.jit(gpu.TARGET)(fn).lower(x, i).compile()
    assert not compiled.fallbacks
    assert len(compiled.launches) == launches
    expected = fn(x, i)
    assert torch.allclose(gpu.call(compiled, (x, i)), expected, atol=1e-6)
    backward = compiled.backward
    assert not backward.fallbacks
    assert back is None or len(backward.launches) == back
    grad = torch.randn_like(expected)
    [found] = gpu.gradients(compiled, (x, i), {0: grad})[:1]
    assert torch.allclose(found, torch.autograd.grad(expected, x, grad)[0], atol=1e-6)


def less_one(x, y):
    p = torch.softmax(x, -1)
    p[torch.arange(x.shape[0]), y] -= 1
    return p


def ones(x, y):
    z = torch.zeros(x.shape[0], 9, dtype=x.dtype)
    z[torch.arange(x.shape[0]), y] = 1
    return z * x


def added(x, y):
    z = x * 2
    z.index_put_((torch.arange(x.shape[0]), y), x[:, 0], accumulate=True)
    return z


def several(x, y):
    z = x * 2
    z[torch.arange(x.shape[0])[:, None], torch.stack([y, y], 1)] = x[:, :1].exp()
    return z


def sums(x, y):
    z = x * 2
    where = (torch.arange(x.shape[0])[:, None], torch.stack([y, y], 1))
    return z.index_put(where, x[:, :2], accumulate=True)


def rewritten(x, y):
    rows = torch.arange(x.shape[0])
    z = x * 1
    z[rows, y] = 0
    rows[0] = 3  # no longer counts
    z[rows, y] = 5
    return z


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [less_one, ones, added, several, sums, rewritten])
def test_writes_and_their_gradients(fn, dynamic: bool) -> None:
    # Of what is written over, torch has none.
    differentiates = fn not in (less_one, rewritten)
    x = torch.randn(6, 9, dtype=torch.float64, requires_grad=differentiates)
    y = torch.randint(-9, 9, (6,))
    found, expected = bt.jit("cpu", dynamic=dynamic)(fn)(x, y), fn(x, y)
    assert torch.allclose(found, expected)
    if not differentiates:
        return
    grad = torch.randn_like(expected)
    [found_grad], [expected_grad] = (torch.autograd.grad(z, x, grad) for z in (found, expected))
    assert torch.allclose(found_grad, expected_grad)


@needs_gpu
@pytest.mark.parametrize("fn", [less_one, ones, added])
def test_one_place_of_each_row_is_written_where_the_row_is_made(fn) -> None:
    x, y = torch.randn(6, 9), torch.randint(-9, 9, (6,))
    compiled = bt.jit(gpu.TARGET)(fn).lower(x, y).compile()
    assert len(compiled.launches) == 1
    assert torch.allclose(gpu.call(compiled, (x, y)), fn(x, y), atol=1e-6)


def stored(cache, y, new):
    cache[torch.arange(cache.shape[0]), y] = new


def test_a_callers_tensor_is_written_to_where_it_lies() -> None:
    """One place of each row, and not all of it."""
    cache, new, y = torch.randn(6, 9, 4), torch.randn(6, 4), torch.randint(-9, 9, (6,))
    [launch] = bt.jit(gpu.TARGET)(stored).lower(cache, y, new).compile().launches
    assert math.prod((*launch.grid, *launch.block)) <= 32
    source = bt.jit(gpu.TARGET)(stored).lower(cache, y, new).compile().source("cuda")
    assert "cache: float32[6, 9, 4] in place" in source
    expected = cache.clone()
    stored(expected, y, new)
    bt.jit("cpu")(stored)(cache, y, new)
    assert torch.equal(cache, expected)


def over_and_over(x, y):
    return x[torch.arange(3).expand(2, 3).reshape(6), y]


def every_place(x, y):
    made = torch.zeros(6, 5)
    made[torch.arange(6)] = x
    return made


def all_of_it(x, y):
    made = torch.zeros(6, 5)
    made[:] = x
    x += 1
    return made


@pytest.mark.parametrize("fn", [over_and_over, every_place, all_of_it])
def test_what_only_looks_counted(fn: Any) -> None:
    """Numbers that repeat, writes to all places, and copies that stay what they were."""
    x, y = torch.randn(6, 5), torch.tensor([0, 4, -1, 2, 2, 1])
    assert torch.equal(bt.jit(fn)(x.clone(), y), fn(x.clone(), y))
