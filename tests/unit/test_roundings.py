"""Products round before something is added to them, as torch's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt


def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y - y * x


def from_rounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * y
    return torch.relu(z) + 0.3 - z * 1.7 + (z - 0.1 * z)


def root(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(x * x - x.abs() * x.abs()) + y


def negated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y - (-(x * y)) - (x * -1.3) * y


def of_scalars(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.1 * x + 0.7 - (y * 3.3 - 1.0) * 0.5


def shared(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.where(x > y, x * y, x * x)
    return z - x * x, z + y * 1.1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fn", [difference, from_rounded, root, negated, of_scalars, shared])
def test_the_same_bits_as_torch(fn: Any, dtype: torch.dtype, dynamic: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (7, 1003, 100_000):
        x, y = torch.randn(2, size, generator=generator, dtype=torch.float64).to(dtype)
        found, wanted = bt.jit("cpu", dynamic=dynamic)(fn)(x, y), fn(x, y)
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted))):
            assert torch.equal(one, other)


@pytest.mark.parametrize("arch", ["haswell", "x86-64-v4"])
def test_on_other_processors(arch: str) -> None:
    x, y = torch.randn(2, 1003, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bt.jit(bt.Target("cpu", arch=arch))(difference)(x, y), torch.zeros(1003))


def large_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3e11, -1)


def large_log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x * x * 1e9, -1)


def large_logsumexp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x * 3e11, -1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    y = x * 3e11
    e = torch.exp(y - y.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("fn", [large_softmax, large_log_softmax, large_logsumexp, by_hand])
def test_the_largest_product_less_the_maximum_is_zero(fn: Any) -> None:
    x = torch.randn(64, 1003, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(bt.jit("cpu")(fn)(x), fn(x), rtol=1e-6, atol=0)
