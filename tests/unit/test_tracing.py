"""Compiled functions inside what traces torch: the plain function is what is traced."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import babytriton as bt


@bt.jit("cpu")
def scored(x, w):
    return torch.tanh(x * w).sum(-1)


def around(x, w):
    return scored(x, w) * 2


def inputs(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randn(8)


class Around(torch.nn.Module):
    def forward(self, x, w):
        return around(x, w)


@pytest.fixture(autouse=True)
def _warm() -> None:
    """Calls before have left a shorter way to run the next ones."""
    x, w = inputs()
    for _ in range(3):
        torch.testing.assert_close(scored(x, w), scored.fn(x, w))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(backend: str) -> None:
    x, w = inputs()
    x.requires_grad_()
    compiled = torch.compile(around, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, w), scored.fn(x, w) * 2)
    (grad,) = torch.autograd.grad(compiled(x, w).sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(scored.fn(x, w).sum() * 2, x)[0])


def test_torch_export() -> None:
    rows = torch.export.Dim("rows")
    program = torch.export.export(Around(), inputs(), dynamic_shapes=({0: rows}, None))
    x, w = inputs(7)
    torch.testing.assert_close(program.module()(x, w), scored.fn(x, w) * 2)


def test_traces_are_of_the_function_and_not_of_its_results() -> None:
    traced = make_fx(around)(*inputs())
    x, w = inputs()
    torch.testing.assert_close(traced(x, w), scored.fn(x, w) * 2)


def test_fake_tensors() -> None:
    with FakeTensorMode():
        found = around(torch.empty(5, 8), torch.empty(8))
    assert found.shape == (5,)
