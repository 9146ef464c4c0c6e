"""`torch.utils.checkpoint` inside a compiled function: its function is inlined."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import babytriton as bt
from babytriton.diagnostics import CompileError
from tests.unit.kernels import kernels

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


class Block(nn.Module):
    def __init__(self, how: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.how = how

    def feed(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return F.gelu(self.layer(x)) * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.how(self, x)


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
WAYS = {
    "module": lambda m, x: checkpoint(m.layer, x, use_reentrant=False),
    "method": lambda m, x: checkpoint(m.feed, x, 2.0, use_reentrant=False),
    "keyword": lambda m, x: checkpoint(m.feed, x, scale=2.0, use_reentrant=False),
    "lambda": lambda m, x: checkpoint(lambda y: m.feed(y) * m.feed(x), x, use_reentrant=False),
    "function": lambda m, x: checkpoint(torch.sin, m.feed(x), use_reentrant=False),
    "nested": lambda m, x: checkpoint(
        lambda y: checkpoint(m.feed, y, use_reentrant=False).sin(), x, use_reentrant=False
    ),
    "reentrant": lambda m, x: checkpoint(m.feed, x, use_reentrant=True),
    "settings": lambda m, x: checkpoint(
        m.feed, x, use_reentrant=False, preserve_rng_state=False, early_stop=False
    ),
    "selective": lambda m, x: checkpoint(m.feed, x, use_reentrant=False, context_fn=SELECTIVE),
    "sequential": lambda m, x: checkpoint_sequential(
        [torch.sin, m.layer, torch.cos, m.feed, m.layer], 2, x, use_reentrant=False
    ),
    "reentrant sequence": lambda m, x: checkpoint_sequential(
        nn.Sequential(m.layer, nn.Tanh(), m.layer), 2, x, use_reentrant=True
    ),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_results_and_gradients(way: str, requires_grad: bool) -> None:
    module = Block(WAYS[way]).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=requires_grad)
    found = []
    for each in (module, bt.jit("cpu")(module)):
        result = each(x)
        given = [y for y in (x, *module.parameters()) if y.requires_grad]
        for y in given:
            y.grad = None
        if result.requires_grad:
            result.square().sum().backward()
        found.append((result, result.requires_grad, [y.grad for y in given]))
    torch.testing.assert_close(*found)


def test_draws_are_those_of_the_gradient() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: F.dropout(y, 0.5), x, use_reentrant=False)

    x = torch.ones(1000, requires_grad=True)
    result = bt.jit("cpu")(dropped)(x)
    (grad,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(grad, result.detach())
    assert set(result.tolist()) == {0.0, 2.0}


def test_it_is_part_of_the_program() -> None:
    def gated(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: y.sigmoid() * y, x, use_reentrant=False) + 1

    lowered = bt.jit("cpu")(gated).lower(torch.ones(8))
    assert not lowered.fallbacks
    assert len(kernels(lowered.schedule().mod)) == 1


def test_lists_of_modules_are_watched() -> None:
    layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def both(x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(layers, 2, x, use_reentrant=False)

    x, jitted = torch.randn(3, 4), bt.jit("cpu")(both)
    torch.testing.assert_close(jitted(x), both(x))
    layers[1] = nn.Linear(4, 4)
    torch.testing.assert_close(jitted(x), both(x))


@pytest.mark.parametrize(
    ("segments", "named", "why"),
    [(3, {}, "ValueError"), (0, {}, "ZeroDivisionError"), (2, {"foo": 1}, "arguments: foo")],
)
def test_sequences_that_torch_refuses(segments: int, named: dict[str, Any], why: str) -> None:
    layers = [torch.sin, torch.cos]
    with pytest.raises(CompileError, match=why):
        bt.jit("cpu")(
            lambda x: checkpoint_sequential(layers, segments, x, use_reentrant=False, **named)
        )(torch.ones(3))


def test_what_cannot_be_kept() -> None:
    x = torch.ones(3)
    contexts = lambda: (torch.no_grad(), torch.no_grad())  # noqa: E731
    with pytest.raises(CompileError, match="its context_fn may do anything"):
        bt.jit("cpu")(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts))(
            x
        )
    with pytest.raises(CompileError, match="Unexpected keyword arguments: out"):
        bt.jit("cpu")(lambda x: checkpoint(torch.sin, x, use_reentrant=True, out=None))(x)
    with pytest.raises(CompileError, match=r"BT\d+.*(?s:.)*missing"):
        bt.jit("cpu")(lambda x: checkpoint(use_reentrant=False))(x)
