"""Indices with divisions within divisions, which TVM's simplifier gets wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def repeated(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(2)[1:].repeat_interleave(2)[1:]


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, -1).flatten()[1:].repeat_interleave(2, 0)[1:]


def rolled(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(3)[2:].repeat_interleave(3)[1:].roll(5) * 2


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2)[1:].repeat_interleave(3)[2:] * 2


def turned(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x[None], (1, 0), mode="circular")[0].flip(-1) + x.repeat(2).flip(0)[: len(x) + 1]


FUNCTIONS = pytest.mark.parametrize("fn", [repeated, expanded, rolled, interleaved, turned])


@FUNCTIONS
@pytest.mark.parametrize("dynamic", [False, True])
def test_on_the_cpu(fn: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    for size in (8, 9, 13):
        x = torch.arange(float(size))
        assert torch.equal(bt.jit("cpu", dynamic=dynamic)(fn)(x), fn(x))


@needs_gpu
@FUNCTIONS
def test_on_the_gpu(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(8.0)
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    assert torch.equal(gpu.call(compiled, (x,)), fn(x))
