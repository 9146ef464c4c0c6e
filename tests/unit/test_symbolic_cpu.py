"""CPU kernels of sizes that vary from call to call: as few and as fast as those of known ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.stages import Compiled


def varied(fn: Callable[..., Any], *calls: tuple[torch.Tensor, ...]) -> Compiled:
    """The program that serves all of the calls, once each has been compared with torch."""
    function = bt.jit("cpu")(fn)
    for call in calls:
        torch.testing.assert_close(function(*call), fn(*call), rtol=2e-5, atol=2e-5)
    *_, serves_all = calls
    return function.compiled_for(serves_all)


def gated(x, w):
    return F.gelu(x * w + 1) * torch.sigmoid(x)


def gated_by_other(x, y):
    return F.silu(x) * F.gelu(y)


def huber(x, y):
    return F.huber_loss(x, y, reduction="none") * torch.exp(x)


@pytest.mark.parametrize("fn", [gated, gated_by_other, huber])
def test_functions_of_functions_are_one_loop(fn):
    w = torch.randn(40)
    calls = [
        (x, w if fn is gated else torch.randn_like(x)) for x in (torch.randn(n, 40) for n in (7, 9))
    ]
    assert "alloc_buffer" not in varied(fn, *calls).source("tir")


def test_what_is_read_by_more_numbers_is_computed_once():
    """exp of a row is not computed again for each of the rows that it is added to."""

    def added(x, row):
        return x + torch.exp(row)

    row = torch.randn(50)
    compiled = varied(added, *((torch.randn(n, 50), row) for n in (6, 11)))
    assert "alloc_buffer" in compiled.source("tir")


def product(x, w):
    return x @ w


def linear(x, w):
    return F.linear(x, w)


def attended(x, w):
    return torch.softmax(x @ w, -1) @ w.mT


@pytest.mark.parametrize("fn", [product, linear, attended])
def test_products_of_batches_load_vectors(fn):
    w = torch.randn(256, 256) / 16
    calls = [(torch.randn(n, 128, 256) / 4, w) for n in (3, 4)]
    parallel = varied(fn, *calls).source("llvm").partition("__tvm_parallel_lambda")[2]
    # A number that all of a vector is multiplied by is inserted first; others would be beside it.
    assert not re.search(r"insertelement <\d+ x float> .*, i64 [1-9]", parallel)
