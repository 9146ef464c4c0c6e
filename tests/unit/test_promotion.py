"""In which dtype operators compute where their operands have several, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

HALVES = (torch.float16, torch.bfloat16)


def same(fn: Callable[..., Any], *args: torch.Tensor) -> None:
    """The compiled function gives the plain one's very numbers, NaN among them."""
    found, expected = bt.jit("cpu")(fn)(*args), fn(*args)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_that_divide_are_rounded_to_halves(dtype: torch.dtype) -> None:
    def f(x):
        rests = x % 0.7, torch.fmod(x, 0.7), torch.remainder(x, 0.7), 1.3 % x
        return *rests, 1.3 // x, x // 0.7, torch.div(x, 0.7, rounding_mode="trunc")

    same(f, torch.linspace(-3, 3, 29).to(dtype))


@pytest.mark.parametrize(
    ("sequence", "values"),
    [
        (torch.tensor([1, 3, 5]), torch.tensor([1.5, 2.9, 3.0, 5.2])),
        (torch.tensor([1.0, 2.5, 3.0]), torch.tensor([1, 2, 3, 4])),
        (torch.tensor([1, 3, 5], dtype=torch.int32), torch.tensor([2**32 + 1, 3, -(2**33)])),
        (torch.tensor([2**24, 2**24 + 1]), torch.tensor([2.0**24 + 1, 2.0**24])),
        (torch.tensor([1, 3, 5]).half(), torch.tensor([2.9999, 3.0001, 1.0])),
    ],
)
def test_searched_values_and_sequences_of_two_dtypes(
    sequence: torch.Tensor, values: torch.Tensor
) -> None:
    def f(sequence, values):
        return torch.searchsorted(sequence, values), torch.bucketize(values, sequence, right=True)

    same(f, sequence, values)


def test_searched_numbers() -> None:
    def f(sequence):
        return torch.searchsorted(sequence, 2.5), torch.searchsorted(sequence, 3)

    same(f, torch.tensor([1, 3, 5]))


def test_tensors_of_infinities_and_nan() -> None:
    def f(x):
        like = torch.full_like(x, -math.inf), x.new_full((2,), math.nan)
        return *like, torch.full((2, 3), math.inf) + x

    for dtype in (torch.float32, torch.float64, *HALVES):
        same(f, torch.zeros(3, dtype=dtype))


def test_a_negative_number_wraps_in_unsigned_tensors() -> None:
    def f(x):
        return torch.full_like(x, -1), torch.full((2,), -300 + 256, dtype=torch.uint8) + x[0]

    same(f, torch.zeros(3, dtype=torch.uint8))


def test_similarity_of_a_single_and_a_half_tensor() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).half()
    ours = bt.jit("cpu")(lambda a, b: F.cosine_similarity(a, b, dim=-1))(torch.tensor(2.0), x)
    exact = F.cosine_similarity(torch.tensor(2.0).double(), x.double(), dim=-1)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)


def bits_of_floats(x):
    return x & x


def full_of_too_much(x):
    return torch.full((3,), 300, dtype=torch.uint8) + x


def statistics_of_one_dimension(x):
    return F.batch_norm(x, None, None, training=True)


def wider_elements(x):
    return x.index_put((torch.tensor([1, 2]),), torch.ones(2, dtype=torch.float64))


def wider_elements_in_place(x):
    x[[1, 2]] = torch.ones(2, dtype=torch.float64)
    return x


@pytest.mark.parametrize(
    "fn",
    [
        bits_of_floats,
        full_of_too_much,
        statistics_of_one_dimension,
        wider_elements,
        wider_elements_in_place,
    ],
)
def test_what_torch_refuses_is_refused(fn: Callable[..., Any]) -> None:
    x = torch.zeros(4) if fn is not full_of_too_much else torch.zeros(3)
    with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
        fn(x.clone())
    with pytest.raises(bt.CompileError, match="BT003"):
        bt.jit("cpu")(fn)(x)


def halved(x):
    x *= 0.5
    return x


def summed(x, y):
    torch.add(x, y, out=x)
    return x


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (halved, (torch.arange(4),)),
        (halved, (torch.ones(4, dtype=torch.bool),)),
        (summed, (torch.arange(4), torch.ones(4))),
    ],
)
def test_results_that_do_not_fit_their_target(fn: Callable[..., Any], args: Any) -> None:
    with pytest.raises(RuntimeError, match="can't be cast"):
        fn(*(x.clone() for x in args))
    with pytest.raises(bt.CompileError, match=r"(?s)BT003.*can't be cast"):
        bt.jit("cpu")(fn)(*args)


def test_bools_are_clamped_by_bools() -> None:
    def clamped(x, low):
        return x.clamp(min=low), x.clamp(max=low), torch.maximum(x, low), torch.minimum(x, low)

    x, low = (torch.tensor(row) for row in ([True, False, True, False], [True, True, False, False]))
    for ours, theirs in zip(bt.jit("cpu")(clamped)(x, low), clamped(x, low)):
        assert ours.dtype == torch.bool
        assert torch.equal(ours, theirs)
