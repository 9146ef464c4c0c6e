"""What torch runs inside a program: memory that it shares with what it is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import babytriton as bt
from babytriton.runtime.direct import LARGE

SIDE = 2048
"""Of tensors whose programs a virtual machine runs, which uses their memory again."""


def read_elsewhere(b: torch.Tensor) -> torch.Tensor:
    c = b.flip(0) + b.flip(1)
    return c.sum(0, keepdim=True) + c


def of_an_alias(x):
    return read_elsewhere(torch.ops.aten.alias(x * 2 + 1))


def of_a_part(x):
    return read_elsewhere(torch.ops.aten.slice(x * 2 + 1, 0, 1, 2048))


def of_a_sum_of_nothing(x):
    return read_elsewhere(torch.einsum("ij->ij", x * 2 + 1))


@pytest.mark.parametrize("fn", [of_an_alias, of_a_part, of_a_sum_of_nothing])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_memory_that_is_used_again(fn: Callable, dynamic: bool) -> None:
    x = torch.randint(-8, 8, (SIDE, SIDE)).float()
    assert x.nbytes >= LARGE
    found = bt.jit(fn, dynamic=dynamic)(x)
    torch.testing.assert_close(found, fn(x), rtol=0, atol=0)
