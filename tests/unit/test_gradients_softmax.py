"""Gradients of softmax: what they save, of what kinds of rows, and losses that are made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

ROWS, CLASSES = 37, 103
X = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0)) * 3
OTHER = torch.rand(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)) + 0.1
TARGET = torch.arange(ROWS) * 2 % CLASSES


def entropy(x):
    shares = F.softmax(x.float(), -1)
    return -(shares * F.log_softmax(x.float(), -1)).sum(-1).mean()


def focal(x):
    own = F.log_softmax(x.float(), -1).gather(-1, TARGET[:, None]).squeeze(-1)
    return (-((1 - own.exp()) ** 2) * own).mean()


def distance(x):
    return F.kl_div(F.log_softmax(x.float(), -1), OTHER, reduction="batchmean")


def narrowed(x):
    return (torch.softmax(x.float(), -1).to(x.dtype) * OTHER).sum()


def squares_of_softmin(x):
    return (OTHER * F.softmin(x.float(), -1) ** 2).sum()


def _saved(compiled: bt.Compiled, shape: tuple[int, ...]) -> set[str]:
    """The names of what the way back is given that has this shape."""
    named = re.findall(r"(\w+): \w+\[([\d, ]*)\]", str(compiled.backward.signature))
    return {name for name, sizes in named if sizes == ", ".join(map(str, shape))}


LOSSES = (entropy, focal, distance, narrowed, squares_of_softmin)


@pytest.mark.parametrize("fn", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_saved_as_numbers(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x = X.to(dtype, copy=True).requires_grad_()
    compiled = bt.jit("cpu")(fn).lower(x).compile()
    saved = _saved(compiled, (ROWS, CLASSES))
    assert "x" in saved
    assert saved <= {"x", "OTHER"}
    exact = X.to(dtype).double().requires_grad_()
    bt.jit("cpu")(fn)(x).backward()
    fn(exact).backward()
    within = 1e-5 if dtype == torch.float32 else 2e-2
    scale = exact.grad.abs().max().item()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=within, atol=within * scale)


CALLS = {
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "log_softmax": lambda x, dim: F.log_softmax(x, dim),
    "softmin": lambda x, dim: F.softmin(x, dim),
    "of another dtype": lambda x, dim: torch.softmax(x, dim, torch.float64),
    "by position": lambda x, dim: F.log_softmax(x, dim, 3, torch.float64),
    "by name": lambda x, dim: F.softmin(x, dim=dim, dtype=torch.float64),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_calls(call: Callable[..., Any], dim: int) -> None:
    def fn(x):
        return call(x, dim)

    x = X[:6, :30].reshape(6, 5, 6)
    compiled = bt.jit("cpu")(fn)
    for one in (x, x.double()):
        ours, theirs = one.clone().requires_grad_(), one.clone().requires_grad_()
        found, expected = compiled(ours), fn(theirs)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
        weights = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
        (found * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    small = x[:3, :2, :3].double().clone().requires_grad_()
    assert torch.autograd.gradgradcheck(compiled, (small,))


@pytest.mark.parametrize("call", [torch.softmax, torch.log_softmax], ids=lambda f: f.__name__)
def test_rows_of_special_numbers(call: Callable[..., Any]) -> None:
    def fn(x):
        return call(x, -1)

    x = torch.tensor([[0.0, math.nan, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3])
    x = torch.cat([x, torch.tensor([[-math.inf, 2.0, 1e38], [-1e38, -1e38, -3e38]])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = bt.jit("cpu")(fn)(ours), fn(theirs)
    torch.testing.assert_close(found, expected, equal_nan=True)
    found[3:].sum().backward()
    expected[3:].sum().backward()
    torch.testing.assert_close(ours.grad[3:], theirs.grad[3:], equal_nan=True)


def test_what_is_alive_is_not_computed_again() -> None:
    """A product needs the shares for its own gradient: then they are the cheapest to have."""

    def attention(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    q, k, v = (torch.randn(2, 8, 16, requires_grad=True) for _ in range(3))
    compiled = bt.jit("cpu")(attention).lower(q, k, v).compile()
    assert len(_saved(compiled, (2, 8, 8))) == 1
    found = torch.autograd.grad(bt.jit("cpu")(attention)(q, k, v).sum(), (q, k, v))
    expected = torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))
    torch.testing.assert_close(found, expected)


def of_pixels(x, t):
    return F.cross_entropy(x, t, ignore_index=5)


def log_shares_of_pixels(x, t):
    return F.nll_loss(F.log_softmax(x, 1), t)


def dice(x, t):
    shares = torch.softmax(x, 1)
    both = (shares * t).sum((2, 3))
    return 1 - (2 * both / (shares.sum((2, 3)) + t.sum((2, 3)) + 1e-5)).mean()


@needs_gpu
@pytest.mark.parametrize("fn", [of_pixels, log_shares_of_pixels, dice], ids=lambda f: f.__name__)
def test_classes_of_pixels(fn: Callable[..., Any]) -> None:
    """What goes along the channels is one kernel, and what sums up the pixels another."""
    x = torch.randn(3, 9, 17, 16, requires_grad=True)
    t = torch.rand_like(x).detach() if fn is dice else torch.arange(3 * 17 * 16).view(3, 17, 16) % 9
    program = bt.jit(gpu.TARGET)(fn).lower(x, t).compile()
    assert len(program.kernels) == (3 if fn is dice else 2)
    assert len(program.backward.kernels) == 1
    exact = x.detach().double().requires_grad_()
    fn(exact, t.double() if fn is dice else t).backward()
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            (found,) = gpu.gradients(program, (x, t), {0: torch.ones(())})
        torch.testing.assert_close(found.double(), exact.grad, rtol=1e-5, atol=1e-8)


def policy_loss(logits, ids, old, advantage):
    """Of the tokens that were chosen, with what speaks for a choice among many (PPO, GRPO)."""
    logs = torch.log_softmax(logits.float(), -1)
    ratio = torch.exp(logs.gather(-1, ids[..., None])[..., 0] - old)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return loss.mean() - 0.01 * -(logs.exp() * logs).sum(-1).mean()


@needs_gpu
@pytest.mark.parametrize("tokens", [32000, 128256])
def test_gradient_of_a_policy_writes_nothing_else_of_the_size_of_logits(tokens: int) -> None:
    logits = torch.empty(8, 512, tokens, dtype=torch.bfloat16, device="meta", requires_grad=True)
    ids = torch.empty(8, 512, dtype=torch.int64, device="meta")
    old, advantage = (torch.empty(8, 512, device="meta") for _ in range(2))
    way_back = bt.jit(gpu.TARGET)(policy_loss).lower(logits, ids, old, advantage).compile().backward
    assert len(way_back.launches) == 1
    assert f"float32[8, 512, {tokens}]" not in way_back.source("cuda")


@needs_gpu
def test_gradient_of_a_policy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 32000, generator=generator).bfloat16().requires_grad_()
    ids = torch.randint(0, 32000, (2, 2), generator=generator)
    chosen = torch.log_softmax(logits.detach().float(), -1).gather(-1, ids[..., None])[..., 0]
    old = chosen - torch.tensor([[0.1, -0.5], [0.5, -0.1]])
    advantage = torch.tensor([[1.0, 2.0], [-1.5, -1.0]])
    program = bt.jit(gpu.TARGET)(policy_loss).lower(logits, ids, old, advantage).compile()
    exact = logits.detach().double().requires_grad_()
    shares = torch.log_softmax(exact, -1)
    ratio = torch.exp(shares.gather(-1, ids[..., None])[..., 0] - old.double())
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    (loss + 0.01 * (shares.exp() * shares).sum(-1).mean()).backward()
    given = (logits, ids, old, advantage)
    (found,) = gpu.gradients(program, given, {0: torch.ones(())})
    torch.testing.assert_close(found.double(), exact.grad, rtol=1e-2, atol=1e-9)


def test_parameters_that_are_words_of_python_but_for_a_line() -> None:
    def gated(not_, class_):
        return not_.softmax(-1) * class_

    args = [X[:4].clone().requires_grad_() for _ in range(2)]
    found = torch.autograd.grad((bt.jit("cpu")(gated)(*args) * OTHER[:4]).sum(), args)
    expected = torch.autograd.grad((gated(*args) * OTHER[:4]).sum(), args)
    torch.testing.assert_close(found, expected)
