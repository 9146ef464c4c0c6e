"""Where the memory of kernels lies."""

from __future__ import annotations

import re

import pytest
import torch

import babytriton as bt


def backwards(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).flip(-1)


def mish(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.log(1 + torch.exp(x))) * x


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.T.contiguous()


@pytest.mark.parametrize("fn", [backwards, mish, transposed])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_locals_on_the_stack_start_at_a_line(fn: object, dtype: torch.dtype) -> None:
    """A vector that is as long as a line takes two accesses elsewhere."""
    x = torch.randn(1003, 1009, generator=torch.Generator().manual_seed(0)).to(dtype)
    jitted = bt.jit("cpu", dynamic=False)(fn)
    source = jitted.lower(x).compile().source("llvm")
    arrays = re.findall(r"alloca \[.*align (\d+)", source)
    # Where all accesses are of shorter vectors, at a multiple of these.
    assert set(arrays) <= {"32", "64"}
    assert arrays or fn is transposed
    within = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(jitted(x), fn(x), rtol=within, atol=within)
