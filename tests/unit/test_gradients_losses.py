"""Gradients of losses: how many kernels they take, and what torch has no second gradients of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

X = torch.randn(37, 103, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(37) * 2 % 103
WEIGHT = torch.rand(103, generator=torch.Generator().manual_seed(1)) + 0.5


def _gradients(fn: Any, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    result = fn(x, *args)
    weights = torch.linspace(0.5, 1, result.numel(), dtype=result.dtype).view_as(result)
    (grad,) = torch.autograd.grad((result * weights).sum(), x)
    return result.detach(), grad


def _check(fn: Any, x: torch.Tensor, *args: Any) -> None:
    compiled = bt.jit("cpu")(fn)
    for one, other in zip(_gradients(compiled, x, *args), _gradients(fn, x, *args)):
        torch.testing.assert_close(one, other)


def mean(x, t, w):
    return F.cross_entropy(x, t)


def total(x, t, w):
    return F.cross_entropy(x, t, reduction="sum")


def each(x, t, w):
    return F.cross_entropy(x, t, reduction="none")


def weighted(x, t, w):
    return F.cross_entropy(x, t, w, ignore_index=4)


def smoothed(x, t, w):
    return F.cross_entropy(x, t, label_smoothing=0.1)


def chosen(x, t, w):
    return torch.log_softmax(x, -1).gather(-1, t[:, None]).squeeze(-1)


def chosen_of_columns(x, t, w):
    return x.exp().gather(0, w[None].long())


def chosen_of_fewer(x, t, w):
    return x.exp().gather(1, t[:20, None] % 103)


def several_chosen(x, t, w):
    return x.exp().gather(-1, torch.stack([t, t, t // 2], -1))


CHOICES = [chosen, chosen_of_columns, chosen_of_fewer, several_chosen]


@pytest.mark.parametrize("fn", CHOICES, ids=lambda f: f.__name__)
def test_gather(fn: Any) -> None:
    _check(fn, X, TARGET, WEIGHT)
    if fn is chosen:
        compiled = bt.jit("cpu")(fn).lower(X.clone().requires_grad_(), TARGET, WEIGHT).compile()
        assert len(compiled.backward.kernels) == 1
        x = X[:5, :7].double().requires_grad_()
        torch.autograd.gradgradcheck(bt.jit("cpu")(fn), (x, TARGET[:5] % 7, None))


@pytest.mark.parametrize("fn", [mean, total, each, weighted, smoothed], ids=lambda f: f.__name__)
def test_cross_entropy_is_one_kernel_each_way(fn: Any) -> None:
    args = X.clone().requires_grad_(), TARGET, WEIGHT
    compiled = bt.jit("cpu")(fn).lower(*args).compile()
    assert len(compiled.kernels) == 1
    assert len(compiled.backward.kernels) == 1
    _check(fn, X, TARGET, WEIGHT)


def with_probabilities(x, t):
    log_probabilities = torch.log_softmax(x, -1)
    return F.nll_loss(log_probabilities, t), log_probabilities


def less_the_targets(x, t):
    return (torch.logsumexp(x, -1) - x[torch.arange(x.shape[0]), t]).mean()


def with_the_sizes(x, t):
    return F.cross_entropy(x, t) + torch.logsumexp(x, -1).square().mean()


def with_the_scale(x, t):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale), scale, scale.mean() + t.sum()


def of_the_next(x, t):
    return F.cross_entropy(x[:-1], t[1:])


def of_some(x, t):
    is_some = t > 5
    found = x.log_softmax(-1).gather(1, t[:, None])[:, 0]
    return torch.where(is_some, -found, 0.0).sum() / is_some.sum()


@pytest.mark.parametrize(
    "fn",
    [
        *(with_probabilities, less_the_targets, with_the_sizes, with_the_scale),
        *(of_the_next, of_some),
    ],
    ids=lambda fn: fn.__name__,
)
def test_what_losses_have_of_each_row_is_computed_with_the_rows(fn: Any) -> None:
    compiled = bt.jit("cpu")(fn)
    assert len(compiled.lower(X, TARGET).compile().kernels) == 1
    torch.testing.assert_close(compiled(X, TARGET), fn(X, TARGET))


def test_cross_entropy_without_gradients_has_no_probabilities_in_memory() -> None:
    """Those of the targets alone are read; the rows are not stored for that."""
    kernel = bt.jit("cpu")(F.cross_entropy).source(X, TARGET, kind="tir")
    assert "alloc_buffer((T.int64(37), T.int64(103))" not in kernel


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss], ids=lambda f: f.__name__)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 4, -1])
def test_ignored_targets(loss: Any, reduction: str, ignored: int) -> None:
    def fn(x, t, w):
        return loss(x, t, w, ignore_index=ignored, reduction=reduction)

    target = torch.where(TARGET == 6, ignored, TARGET)
    _check(fn, X, target, WEIGHT)
    _check(lambda x, t: loss(x, t, ignore_index=ignored, reduction=reduction), X, target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cross_entropy_in_half_precision(dtype: torch.dtype) -> None:
    _check(mean, (X * 20).to(dtype), TARGET, WEIGHT)


def test_cross_entropy_far_from_zero() -> None:
    _check(mean, X + 1e4, TARGET, WEIGHT)
    exact = _gradients(mean, X.double() + 1e4, TARGET, WEIGHT)
    found = _gradients(bt.jit("cpu")(mean), (X.double() + 1e4).float(), TARGET, WEIGHT)
    torch.testing.assert_close(found[1].double().sum(1), exact[1].sum(1), rtol=0, atol=1e-8)


def test_cross_entropy_of_any_size() -> None:
    dynamic = bt.jit("cpu", dynamic=True)(smoothed)
    for rows, classes in ((5, 7), (37, 103), (2, 3)):
        args = X[:rows, :classes], TARGET[:rows] % classes, WEIGHT[:classes]
        for one, other in zip(_gradients(dynamic, *args), _gradients(smoothed, *args)):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multi_margin_loss(p: int, reduction: str) -> None:
    def fn(x, t, w):
        return F.multi_margin_loss(x, t, p, 0.5, w, reduction=reduction)

    _check(fn, X, TARGET, WEIGHT)
    # At the kink.
    _check(lambda x, t: F.multi_margin_loss(x, t, p, 1.0, reduction=reduction), X.round(), TARGET)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_multi_margin_loss_of_a_single_row(shape: tuple[int, ...], reduction: str) -> None:
    def fn(x, t):
        return F.multi_margin_loss(x, t, reduction=reduction)

    _check(fn, X[0], torch.full(shape, 3))


def test_hardsigmoid() -> None:
    _check(F.hardsigmoid, torch.linspace(-5, 5, 21))
    _check(lambda x: F.hardsigmoid(x) * 2, torch.linspace(-5, 5, 21))


def test_probabilities_of_zero_and_one() -> None:
    def fn(x, y):
        return F.binary_cross_entropy(x, y)

    _check(fn, torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5]))


def test_logits_far_from_zero_have_gradients() -> None:
    def fn(x, y):
        return F.binary_cross_entropy_with_logits(x, y)

    _check(fn, torch.tensor([-60.0, 60.0, -60.0, 60.0]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
