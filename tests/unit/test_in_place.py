"""Rows on the way to a result, kept where the result will be."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tvm.script import tirx as T

import babytriton as bt
from babytriton.passes.cpu import caches


@pytest.fixture(autouse=True)
def large_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_cache", lambda: 32 << 20)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = torch.exp(x)
    total = e.sum(-1, keepdim=True)
    return e / total, e * total


def earlier_and_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = torch.exp(x)
    y = e * e.sum(-1, keepdim=True)
    return y, e - y.sum(-1, keepdim=True)


def of_another_dtype(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x)
    return (e / e.sum(-1, keepdim=True)).double()


def backwards(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).flip(-1)


def locals_of(fn: Any, x: torch.Tensor) -> list[str]:
    """The locals that hold a row."""
    source = bt.jit("cpu", dynamic=False)(fn).lower(x).compile().source("tir")
    pattern = rf"(\w+) = T\.alloc_buffer\(.*int64\({x.shape[-1]}\),?\)"
    return re.findall(pattern, source)


@pytest.mark.parametrize("shape", [(7, 100), (64, 1003), (3, 40000)])
@pytest.mark.parametrize("fn", [softmax, by_hand, two_results, earlier_and_later, backwards])
def test_values(fn: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found, exact = bt.jit("cpu", dynamic=False)(fn)(x), fn(x.double())
    for one, other in zip(
        found if isinstance(found, tuple) else (found,),
        exact if isinstance(exact, tuple) else (exact,),
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "rows"),
    [
        *((softmax, 0), (by_hand, 0), (two_results, 0), (earlier_and_later, 0)),
        *((of_another_dtype, 1), (backwards, 1)),
    ],
)
def test_no_row_besides_the_result(fn: Any, rows: int) -> None:
    assert len(locals_of(fn, torch.randn(64, 1003))) == rows


def test_results_past_the_caches_are_not_read_again() -> None:
    x = torch.empty(8192, 1024)
    assert len(locals_of(softmax, x)) == 1


def test_functions_that_may_run_again_find_their_arguments() -> None:
    """A sine takes the short way, and what it has stored is no argument when that was wrong."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x)
        return torch.sin(e * e.sum(-1, keepdim=True))

    x = torch.randn(64, 1003, generator=torch.Generator().manual_seed(0))
    jitted = bt.jit("cpu", dynamic=False)(turned)
    assert "is_large" in jitted.lower(x).compile().source("llvm")
    x[5] += 3  # the largest of them is more than 2**19
    e = torch.exp(x.double())
    found, exact = jitted(x).double(), torch.sin(e * e.sum(-1, keepdim=True))
    # Of large angles a float32 has few digits, or none.
    assert found[5].abs().max() <= 1
    torch.testing.assert_close(found[6:], exact[6:], rtol=0, atol=0.05)


@T.prim_func(s_tir=True)
def cleared(x: T.Buffer((64, 1000), "float32"), out: T.Buffer((64, 1000), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in T.serial(64):
        with T.sblock("row"):
            T.reads(x[i, 0:1000])
            T.writes(out[i, 0:1000])
            e = T.alloc_buffer((1000,), "float32")
            T.evaluate(T.call_extern("void", "memset", e.data, 0, 4000))
            for k in T.serial(0, 1000):
                e[k] = e[k] + x[i, k] * T.float32(2)
            for k in T.serial(0, 1000):
                out[i, k] = e[k] + x[i, 999 - k]


def test_rows_that_others_know_the_address_of_stay() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return cleared(x)

    x = torch.randn(64, 1000)
    torch.testing.assert_close(bt.jit("cpu")(fn)(x), x * 2 + x.flip(1))
