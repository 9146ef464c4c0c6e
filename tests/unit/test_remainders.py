"""Indices that begin again and again, as those of repeated tensors do, in loops of vectors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import babytriton as bt


def repeated(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return x * c.repeat(1, x.shape[-1] // c.shape[-1])


def by_head(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    batch, tokens, width = x.shape
    heads = x.view(batch, tokens, width // c.shape[-1], c.shape[-1])
    return (heads * c[:, None, :]).reshape(batch, tokens, width) + 1


def joined(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    batch, tokens, width = x.shape
    heads = x.view(batch, width // c.shape[-1], tokens, c.shape[-1])
    y = (heads * c).permute(0, 2, 1, 3).reshape(batch, tokens, width)
    return torch.cat([y, y * 2], -1)


def in_halves(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    batch, tokens, width = x.shape
    heads = x.view(batch, width // c.shape[-1], tokens, c.shape[-1])
    one, other = heads.chunk(2, -1)
    y = heads * c + torch.cat([-other, one], -1) * c
    return y.permute(0, 2, 1, 3).reshape(batch, tokens, width)


def chosen(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x * c.repeat(1, x.shape[-1] // c.shape[-1]), x)


def compared(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return x > c.repeat(1, x.shape[-1] // c.shape[-1])


def spread(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * c.repeat_interleave(x.shape[-1] // c.shape[-1], 1))


def scales(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Each period stores one number alone."""
    return c.repeat_interleave(x.shape[-1] // c.shape[-1], 1)


FUNCTIONS = [repeated, by_head, joined, in_halves, chosen, compared, spread, scales]


def check(found: torch.Tensor, fn: Any, x: torch.Tensor, c: torch.Tensor, within: float) -> None:
    exact = fn(x.double(), c.double())
    if exact.dtype == torch.bool:
        assert torch.equal(found, exact)
    else:
        torch.testing.assert_close(found.double(), exact, rtol=within, atol=within)


@pytest.mark.parametrize("arch", [None, "haswell"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 12])
@pytest.mark.parametrize("times", [2, 4, 8])
@pytest.mark.parametrize(("batch", "tokens"), [(3, 40), (2, 7), (2, 64)])
def test_values(fn: Any, size: int, times: int, batch: int, tokens: int, arch: str | None) -> None:
    x, c = torch.randn(batch, tokens, times * size), torch.randn(tokens, size)
    check(bt.jit(bt.Target("cpu", arch=arch))(fn)(x, c), fn, x, c, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("size", [8, 12, 16, 96])
def test_many_periods(fn: Any, size: int, dtype: torch.dtype) -> None:
    x, c = torch.randn(64, 8, 24 * size).to(dtype), torch.randn(8, size).to(dtype)
    within = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 8e-3}[dtype]
    check(bt.jit("cpu")(fn)(x, c), fn, x, c, within)


@pytest.mark.parametrize("fn", [repeated, by_head, chosen], ids=lambda fn: fn.__name__)
def test_a_loop_over_periods_divides_nothing(fn: Any) -> None:
    x, c = torch.randn(4, 40, 32 * 16), torch.randn(40, 16)
    kernel = bt.jit("cpu")(fn).source(x, c, kind="tir")
    assert "for period in range(T.int64(32))" in kernel
    assert "for ax2_fused in T.vectorized(T.int64(16))" in kernel
    assert not re.search(r"ax2_fused (%|//)", kernel)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [8, 16, 31])
def test_integers(size: int, dtype: torch.dtype) -> None:
    x, c = torch.arange(5 * 32 * size) % 100, torch.arange(5 * size) % 7
    x, c = x.reshape(1, 5, -1).to(dtype), c.reshape(5, size).to(dtype)
    for fn in (repeated, compared, scales):
        assert torch.equal(bt.jit("cpu")(fn)(x, c), fn(x, c))


def test_in_place() -> None:
    def grown(x, c):
        x.add_(c.repeat(1, 32))
        return x * 2

    x, c = torch.randn(4, 40, 32 * 16), torch.randn(40, 16)
    ours, theirs = x.clone(), x.clone()
    torch.testing.assert_close(bt.jit("cpu")(grown)(ours, c), grown(theirs, c))
    torch.testing.assert_close(ours, theirs)
