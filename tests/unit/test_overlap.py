"""Whether tensors share memory."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import babytriton as bt
from babytriton.runtime.overlap import overlap


def places(x: torch.Tensor) -> set[int]:
    offsets = itertools.product(*(range(n) for n in x.shape))
    strides = x.stride()
    return {x.data_ptr() + x.element_size() * sum(map(int.__mul__, i, strides)) for i in offsets}


def test_parts_of_one_tensor() -> None:
    whole = torch.zeros(400)
    draw = random.Random(0)
    for _ in range(2000):
        tensors = []
        for _ in range(2):
            shape = [draw.randint(0, 5) for _ in range(draw.randint(0, 3))]
            stride = [draw.choice([0, 1, 2, 3, 5, 7, 10, 20]) for _ in shape]
            tensors.append(whole.as_strided(shape, stride, draw.randint(0, 60)))
        left, right = tensors
        assert overlap(left, right) == bool(places(left) & places(right)), (left.stride(), right)


def test_of_two_dtypes() -> None:
    whole = torch.zeros(16)
    assert overlap(whole, whole.view(torch.float16))
    assert not overlap(whole[:8], whole[8:].view(torch.float16))


def scaled(q, k):
    return q.mul_(k).sum()


@pytest.mark.parametrize("dynamic", [None, True])
def test_columns_of_one_tensor_are_written_to(dynamic: bool | None) -> None:
    qkv = torch.randn(4, 15)
    expected = qkv.clone()
    jitted = bt.jit("cpu", dynamic=dynamic)(scaled)
    for _ in range(5):
        total = jitted(qkv[:, :5], qkv[:, 10:])
        torch.testing.assert_close(total, scaled(expected[:, :5], expected[:, 10:]))
        torch.testing.assert_close(qkv, expected)
        torch.testing.assert_close(
            jitted(qkv[0, ::2], qkv[1, ::2]), scaled(expected[0, ::2], expected[1, ::2])
        )
        torch.testing.assert_close(qkv, expected)
    with pytest.raises(ValueError, match=r"BT113.*`q`"):
        jitted(qkv[:, :5], qkv[:, 4:9])
