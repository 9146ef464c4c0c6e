"""Rows that are only added up, several at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt


def sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((x * x).mean(-1) + 1e-6)


def largest(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() + 1).amax(-1)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def products(x: torch.Tensor) -> torch.Tensor:
    return (x * x.flip(0)).sum(-1)


def is_in_groups(fn: Any, x: torch.Tensor) -> bool:
    return "for group in" in bt.jit("cpu", dynamic=False)(fn).lower(x).compile().source("tir")


def numbers(rows: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, length, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("length", [640, 1003, 4096])
@pytest.mark.parametrize("rows", [64, 65, 66, 67, 999])
@pytest.mark.parametrize("fn", [sums, root_mean_square, largest])
def test_any_number_of_rows(fn: Any, rows: int, length: int) -> None:
    x = numbers(rows, length)
    assert is_in_groups(fn, x) or fn is largest
    found, exact = bt.jit("cpu", dynamic=False)(fn)(x), fn(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    x = numbers(130, 1000, dtype)
    found, exact = bt.jit("cpu", dynamic=False)(sums)(x), sums(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 64, 999_999])
def test_everything(size: int) -> None:
    x = numbers(1, size)[0]
    found = bt.jit("cpu", dynamic=False)(total)(x)
    torch.testing.assert_close(found.double(), x.double().sum(), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(
    ("fn", "shape"), [(products, (64, 1000)), (sums, (8, 4000)), (sums, (4000, 100))]
)
def test_others_go_one_by_one(fn: Any, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    assert not is_in_groups(fn, x)
    found = bt.jit("cpu", dynamic=False)(fn)(x)
    torch.testing.assert_close(found.double(), fn(x.double()), rtol=1e-6, atol=1e-4)
