"""Tensors that are known while compiling: as results, and as what kernels read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.passes.steps import steps_of
from tests.conformance import gpu
from tests.emulator import emulator

on_gpu = pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")


def zeros(x):
    return torch.zeros(3), x + 1


def listed(x):
    return torch.tensor([1.0, 2.0, 3.0]), x + torch.tensor([1.0, 2.0, 3.0])


def number(x):
    return torch.tensor(2.5), x


def triangle(x):
    return torch.ones(4, 3).tril(), x.sum()


def counted(x):
    return torch.arange(3), torch.linspace(0, 1, 3) + x


def on_one_path(x):
    y = torch.zeros(3)
    if x.sum() > 1e9:
        y = y + 1
    return y, x * 2


def before_a_loop(x):
    y = torch.zeros(3)
    while x.sum() + y.sum() > 1e9:
        y = y + 1
    return y, x * 2


RESULTS = (zeros, listed, number, triangle, counted, on_one_path, before_a_loop)


@pytest.mark.parametrize("fn", RESULTS)
def test_each_call_gives_a_tensor_of_its_own(fn: Any) -> None:
    jitted, x = bt.jit("cpu")(fn), torch.randn(4, 3)
    for _ in range(5):
        found = jitted(x)
        torch.testing.assert_close(found, fn(x))
        found[0].add_(7)


@on_gpu
@pytest.mark.parametrize("fn", RESULTS)
def test_on_a_gpu(fn: Any) -> None:
    x = torch.randn(4, 3)
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    for _ in range(2):
        found = gpu.call(compiled, (x,))
        torch.testing.assert_close(found, fn(x))
        found[0].add_(7)


def masked(x):
    return x.masked_fill(torch.ones(4, 3).tril().bool(), 0.0)


def halves(x):
    return x * torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)


def emptied(x):
    x.zero_()
    x[1] = 7


@pytest.mark.parametrize("fn", [listed, masked, halves, emptied])
def test_kernels_that_read_them_need_no_virtual_machine(fn: Any) -> None:
    x = torch.randn(4, 3)
    jitted = bt.jit("cpu")(fn)
    compiled = jitted.lower(x).compile()
    plan = steps_of(compiled.scheduled.mod, compiled.executable.entry)
    assert plan is not None
    assert plan.constants
    for _ in range(4):
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(jitted(ours), fn(theirs))
        torch.testing.assert_close(ours, theirs)
