"""What is rounded: products before something is added to them, and halves where they must be."""

from __future__ import annotations

import re
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
    target = bt.Target("cpu", arch=arch)
    if target.missing:
        pytest.skip(f"this processor has no {', '.join(target.missing)}")
    x, y = torch.randn(2, 1003, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bt.jit(target)(difference)(x, y), torch.zeros(1003))


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


# Halves

HALVES = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)

WHOLE = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "of the absolute value": lambda x: x.abs().floor().clamp(-3, 3) * 2,
    "of a float32": lambda x: (x.float() * 1.7).ceil().to(x.dtype),
}


@pytest.mark.parametrize("fn", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_whole_numbers_of_all_halves(fn: Any, dtype: torch.dtype) -> None:
    """The same bits as torch's, with the signs of zeros; of NaN that it is none."""

    def called(x):
        return fn(x)

    x = HALVES.view(dtype)
    found, exact = bt.jit("cpu")(called)(x), fn(x)
    is_nan = exact.isnan()
    assert torch.equal(found.isnan(), is_nan)
    assert torch.equal(found.view(torch.int16)[~is_nan], exact.view(torch.int16)[~is_nan])


@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_integers_of_all_halves(to: torch.dtype) -> None:
    def cast(x):
        return x.to(to)

    x = HALVES.view(torch.float16)
    x = x[x.isfinite()]
    assert torch.equal(bt.jit("cpu")(cast)(x), x.to(to))


def test_what_halves_have_is_not_rounded_to_them() -> None:
    def quantized(x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-127, 127).to(torch.int8)

    x = torch.empty(64, 512, dtype=torch.bfloat16)
    source = bt.jit(bt.Target("cuda", arch="sm_80"))(quantized).lower(x).compile().source()
    rounded = re.findall(r"\(nv_bfloat16\)\(*(\w+)", source)
    assert "fabs_value" not in rounded
    assert "nearbyint_value" not in rounded
    assert source.count("(nv_bfloat16)") == 3  # the largest, the scale, and the quotient


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_bits_of_what_is_computed(dtype: torch.dtype, dynamic: bool) -> None:
    def all_kinds(x: torch.Tensor) -> list[torch.Tensor]:
        computed = x * 2.3
        turned = (x + 1).t().contiguous()
        kinds = (x, computed, turned, x.amax(0), torch.full_like(x, 0.3), -x, x.cumsum(0)[:1])
        return [bits(y) for y in kinds] + [(bits(computed) & -2).view(x.dtype) * 2]

    for shape in ((3, 5), (64, 80), (300, 200)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        x[0, :4] = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
        found = bt.jit("cpu", dynamic=dynamic)(all_kinds)(x)
        for one, other in zip(found, all_kinds(x), strict=True):
            assert torch.equal(one, other)
