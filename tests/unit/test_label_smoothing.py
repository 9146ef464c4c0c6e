"""Cross entropy with label smoothing: what a loss is for each class, from one pass over the row."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu


def smoothed(x, t):
    return F.cross_entropy(x, t, label_smoothing=0.1, reduction="none")


def weighted(x, t, w):
    return F.cross_entropy(x, t, w, label_smoothing=0.3, reduction="none")


def mean(x, t):
    return F.cross_entropy(x, t, label_smoothing=0.1)


def plain(x, t):
    return F.cross_entropy(x, t)


_ORDINARY = 5
"""The rows from this one on have no infinities, and no NaN."""


def special(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with numbers that are none, or large, at the class of their target or elsewhere."""
    torch.manual_seed(0)
    x, t = torch.randn(14, length) * 3, torch.randint(length, (14,))
    x[0, 3], x[1, 2], x[2] = math.inf, math.nan, -math.inf
    x[3, t[3]], x[4, t[4]] = math.inf, math.nan
    x[5, t[5]], x[6, (t[6] + 1) % length] = -1e9, -1e9
    x[7] += 1e4
    t[8] = -100
    # An infinite loss, the gradient of which is none.
    x[12, t[12]], x[13, (t[13] + 1) % length] = -math.inf, -math.inf
    return x, t


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("length", [7, 300])
@pytest.mark.parametrize("gradients", [False, True])
def test_values(length: int, gradients: bool) -> None:
    (x, t), w = special(length), torch.rand(length) + 0.1
    leaf = x.clone().requires_grad_(gradients)
    check(bt.jit("cpu")(smoothed)(leaf, t).detach(), smoothed(x.double(), t))
    check(bt.jit("cpu")(weighted)(leaf, t, w).detach(), weighted(x.double(), t, w.double()))


def test_values_on_a_gpu() -> None:
    (x, t), w = special(300), torch.rand(300) + 0.1
    for fn, args in ((smoothed, (x, t)), (weighted, (x, t, w))):
        compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
        check(gpu.call(compiled, args), fn(*(y.double() if y is not t else y for y in args)))


def test_gradients() -> None:
    x, t = special(60)
    exact, leaf = x.double().requires_grad_(), x.clone().requires_grad_()
    smoothed(exact, t)[_ORDINARY:12].sum().backward()
    bt.jit("cpu")(smoothed)(leaf, t)[_ORDINARY:12].sum().backward()
    found, wanted = leaf.grad[_ORDINARY:12], exact.grad[_ORDINARY:12]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("length", [1000, 50257])
def test_rows_are_read_as_often_as_without(length: int, gradients: bool) -> None:
    """Also those that are too long for the registers, of which each sweep reads all again."""
    x = torch.empty(4096, length, device="meta", requires_grad=gradients)
    t = torch.empty(4096, dtype=torch.int64, device="meta")

    def loops(fn) -> int:
        source = bt.jit(bt.Target("cuda", arch="sm_90"))(fn).lower(x, t).compile().source("cuda")
        first = source.split('extern "C"')[1]
        return len(re.findall(r"\bx(?: \+|\[)[^;]*\bthread", first))

    assert loops(mean) == loops(plain) == 2
