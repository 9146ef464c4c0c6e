"""Calls under ``torch.autocast``: what torch casts is cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import babytriton as bt

BFLOAT16 = torch.bfloat16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v)
        return x + self.down(F.gelu(self.up(self.norm(x))))


def product(x, w):
    return x @ w, x + w


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_block_and_its_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 5, 16)
    compiled = bt.jit("cpu")(block)
    exact = block.double()(x.double()).detach()
    block.float()
    with torch.autocast("cpu", dtype=dtype):
        found, expected = compiled(x), block(x)
    assert found.dtype == expected.dtype == torch.float32
    own = (expected - exact).abs().max()
    assert 0 < (found - exact).abs().max() <= 2 * own
    parameters = list(block.parameters())
    ours = torch.autograd.grad(found.square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    for grad, other in zip(ours, theirs):
        assert grad.dtype == torch.float32
        bound = 4 * torch.finfo(dtype).eps * other.abs().max().item()
        torch.testing.assert_close(grad, other, rtol=0, atol=bound)


def test_each_setting_has_a_program() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    compiled = bt.jit("cpu")(product)
    settings: list[Any] = [None, torch.bfloat16, torch.float16]
    for dtype in settings * 3:
        with torch.autocast("cpu", dtype=dtype or BFLOAT16, enabled=dtype is not None):
            found, expected = compiled(x, w), product(x, w)
        assert [y.dtype for y in found] == [dtype or torch.float32, torch.float32]
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert len(compiled.specializations()) == 3


def test_blocks_inside() -> None:
    @bt.jit("cpu")
    def blocks(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = x @ w
        return y, z, x @ w

    @bt.jit("cpu")
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x, w):
        return x @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    for outer, last in ((False, torch.float32), (True, torch.float16)):
        with torch.autocast("cpu", dtype=torch.float16, enabled=outer):
            found = blocks(x, w)
            assert [y.dtype for y in found] == [y.dtype for y in blocks.fn(x, w)]
            assert [y.dtype for y in found] == [BFLOAT16, torch.float32, last]
            assert decorated(x, w).dtype == BFLOAT16


def test_casts_of_the_users_own() -> None:
    def casts(x):
        half = x.half()
        half[0] = 0
        return half, x.to(torch.float64), x.type(torch.bfloat16) @ x

    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=BFLOAT16):
        found, expected = bt.jit("cpu")(casts)(x), casts(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_what_torch_runs() -> None:
    def inverse(x):
        with torch.autocast("cpu", enabled=False):
            exact = torch.linalg.inv(x) @ x
        return torch.linalg.inv(x @ x), exact

    x = torch.rand(3, 3) * 0.2 + 2 * torch.eye(3)
    with torch.autocast("cpu", dtype=BFLOAT16):
        found, expected = bt.jit("cpu")(inverse)(x), inverse(x)
    assert [y.dtype for y in found] == [torch.float32, torch.float32]
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_sizes_that_vary() -> None:
    compiled = bt.jit("cpu", dynamic=True)(product)
    for n in (3, 5):
        x, w = torch.randn(n, n), torch.randn(n, n)
        with torch.autocast("cpu", dtype=BFLOAT16):
            found, expected = compiled(x, w), product(x, w)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert len(compiled.specializations()) == 1


@bt.library_op("babytriton_autocast::projected")
def projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def test_operators_of_torch() -> None:
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)

    def around(x, w):
        return projected(x, w) * 2

    with torch.autocast("cpu", dtype=BFLOAT16):
        expected = projected.fn(x, w) * 2
        compiled = torch.compile(around, fullgraph=True, backend="aot_eager")
        for fn in (around, compiled, lambda x, w: projected.overload(x, w) * 2):
            found = fn(x, w)
            assert found.dtype == BFLOAT16
            torch.testing.assert_close(found, expected)
            (grad,) = torch.autograd.grad(found.sum(), x)
            other = torch.autograd.grad(expected.sum(), x, retain_graph=True)[0]
            torch.testing.assert_close(grad, other, rtol=2e-2, atol=2e-2)
