"""Indices that begin again and again, as those of repeated tensors do, in loops of vectors."""

from __future__ import annotations

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


@pytest.mark.parametrize("arch", [None, "haswell"])
@pytest.mark.parametrize("fn", [repeated, by_head, joined, in_halves], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 12])
@pytest.mark.parametrize("times", [2, 4, 8])
@pytest.mark.parametrize(("batch", "tokens"), [(3, 40), (2, 7), (2, 64)])
def test_values(fn: Any, size: int, times: int, batch: int, tokens: int, arch: str | None) -> None:
    x, c = torch.randn(batch, tokens, times * size), torch.randn(tokens, size)
    found = bt.jit(bt.Target("cpu", arch=arch))(fn)(x, c)
    torch.testing.assert_close(found.double(), fn(x.double(), c.double()), rtol=1e-6, atol=1e-6)
