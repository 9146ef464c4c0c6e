"""Rows that are only added up, several at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tvm.script import tirx as T

import babytriton as bt


def sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((x * x).mean(-1) + 1e-6)


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1)


def of_integers(x: torch.Tensor) -> torch.Tensor:
    return (x * 10).to(torch.int32).sum(-1)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def products(x: torch.Tensor) -> torch.Tensor:
    return (x * x.flip(0)).sum(-1)


def is_in_groups(fn: Any, x: torch.Tensor) -> bool:
    return "for group in" in bt.jit("cpu", dynamic=False)(fn).lower(x).compile().source("tir")


def numbers(rows: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, length, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("length", [256, 1003, 4096])
@pytest.mark.parametrize("rows", [256, 258, 999])
@pytest.mark.parametrize("fn", [sums, root_mean_square])
def test_groups_of_four_three_and_two(fn: Any, rows: int, length: int) -> None:
    x = numbers(rows, length)
    assert is_in_groups(fn, x)
    found, exact = bt.jit("cpu", dynamic=False)(fn)(x), fn(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    x = numbers(260, 1000, dtype)
    assert is_in_groups(sums, x)
    found, exact = bt.jit("cpu", dynamic=False)(sums)(x), sums(x.double())
    within = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=within)


@pytest.mark.parametrize(("size", "is_grouped"), [(1 << 22, True), (999_999, False)])
def test_everything(size: int, is_grouped: bool) -> None:
    x = numbers(1, size)[0]
    assert is_in_groups(total, x) == is_grouped
    found = bt.jit("cpu", dynamic=False)(total)(x)
    torch.testing.assert_close(found.double(), x.double().sum(), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        *((products, (256, 1000)), (sums, (128, 4000)), (sums, (4000, 100)), (sums, (257, 1000))),
        *((largest, (256, 1000)), (of_integers, (256, 1000))),
    ],
)
def test_others_go_one_by_one(fn: Any, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    assert not is_in_groups(fn, x)
    found = bt.jit("cpu", dynamic=False)(fn)(x)
    torch.testing.assert_close(found.double(), fn(x.double()).double(), rtol=1e-6, atol=1e-4)


def test_equal_rows_have_equal_sums() -> None:
    x = numbers(1, 1003).repeat(999, 1)
    found = bt.jit("cpu", dynamic=False)(sums)(x)
    assert torch.equal(found, found[:1].expand(999))


@T.prim_func(s_tir=True)
def overlapping(x: T.Buffer((40000,), "float32"), out: T.Buffer((256,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in T.parallel(256):
        out[i] = T.float32(0)
        for k in T.serial(i * 10, i * 10 + 1000):
            out[i] = out[i] + x[k]


def test_rows_that_start_elsewhere() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return overlapping(x)

    x = numbers(1, 40000)[0]
    exact = x.double().unfold(0, 1000, 10)[:256].sum(-1)
    torch.testing.assert_close(bt.jit("cpu")(fn)(x).double(), exact, rtol=1e-6, atol=1e-4)
