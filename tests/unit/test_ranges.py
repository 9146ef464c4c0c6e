"""Loops on the CPU whose index decides what they read: one for each range."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt


def put_together(x, y):
    return torch.cat([x, y * 2, x[:, :3]], -1)


def repeated(x, y):
    return x.repeat(2, 3) + torch.cat([y, y, y, y, y, y], 0).reshape(2 * x.shape[0], -1)


def padded(x, y):
    return F.pad(x, (2, 3, 1, 0), value=0.5) * 2


def reflected(x, y):
    return F.pad(x.unsqueeze(0), (2, 3), mode="reflect")


def rolled(x, y):
    return x.roll(3, -1) + y.roll((1, -2), (0, 1))


def sums_of_parts(x, y):
    return torch.cat([x, y], -1).sum(-1), torch.cat([x, y], 0).amax(0)


def rotated(x, y):
    half = x.shape[-1] // 2
    return x * y + torch.cat([-x[:, half:], x[:, : 2 * half - half]], -1) * y[:, : 2 * half].sum()


FUNCTIONS = [put_together, repeated, padded, reflected, rolled, sums_of_parts, rotated]


@pytest.mark.parametrize("size", [(3, 8), (5, 17), (64, 128), (200, 311), (1, 40_000)])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values(fn, size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(size, generator=generator) for _ in range(2))
    if fn is rotated:
        x, y = (part[:, : size[1] // 2 * 2].contiguous() for part in (x, y))
    for dynamic in (False, True):
        found = bt.jit("cpu", dynamic=dynamic)(fn)(x, y)
        exact = fn(x.double(), y.double())
        torch.testing.assert_close(found, exact, check_dtype=False, rtol=2e-5, atol=1e-4)


def test_a_range_asks_nothing() -> None:
    def tiled(x, y):
        return torch.cat([x, y], -1).repeat(1, 3)

    x, y = torch.randn(64, 100), torch.randn(64, 100)
    for fn in (put_together, tiled):
        source = bt.jit("cpu", dynamic=False)(fn).lower(x, y).compile().source("tir")
        assert "if_then_else" not in source
    assert "% T.int64(200)" not in source


def test_many_ranges_are_a_loop_around_another() -> None:
    def many(x):
        return x.repeat(40)

    x = torch.randn(30)
    compiled = bt.jit("cpu")(many).lower(x).compile()
    assert torch.equal(compiled(x), many(x))
    assert compiled.source("tir").count("for ") == 2


@pytest.mark.parametrize("sizes", [(100, 200), (1030, 64), (17, 3000)])
def test_what_is_read_along_one_axis_is_no_transpose(sizes: tuple[int, int]) -> None:
    def outer(x, y):
        return x[:, None] * y

    def rows(x, y):
        return F.embedding((x.abs() * 3).long(), y[:, None] * y[:8])

    def beside(x, y):
        return torch.stack([x, x + 1], -1)

    x, y = (torch.linspace(-2, 2, size) for size in sizes)
    for fn in (outer, rows, beside):
        compiled = bt.jit("cpu")(fn).lower(x, y).compile()
        torch.testing.assert_close(compiled(x, y), fn(x, y))
        assert "T.int64(16), T.int64(16)" not in compiled.source("tir")


@pytest.mark.parametrize("columns", [1, 30, 257])
def test_rows_that_are_looked_up(columns: int) -> None:
    def looked_up(x, i):
        return x.index_select(0, i) * 2, F.embedding(i.view(-1, 2), x), x[i, : x.shape[1] // 2]

    def added(x, i):
        return torch.zeros_like(x).index_add(0, i, x[: i.shape[0]])

    x, i = torch.randn(50, columns), torch.tensor([3, 0, 49, 3, 7, 11])
    for dynamic in (False, True):
        for fn in (looked_up, added):
            torch.testing.assert_close(bt.jit("cpu", dynamic=dynamic)(fn)(x, i), fn(x, i))


def test_places_are_read_before_a_loop() -> None:
    def looked_up(x, i):
        return x.index_select(0, i)

    given = bt.Tensor["n", "k"], bt.Tensor((6,), torch.int64)
    compiled = bt.jit("cpu")(looked_up).lower(*given).compile()
    source = compiled.source("tir")
    assert source.index(" = i[") < source.index("for ax1")
    assert re.search(r"<\d+ x float>", compiled.source("llvm"))
    x, i = torch.randn(9, 40), torch.tensor([0, 8, 3, 3, 1, 2])
    assert torch.equal(compiled(x, i), x[i])


def test_tiles_of_products_stay_whole() -> None:
    """What fills an operand up asks at each number, too, whether it is there."""
    x, w = torch.randn(101, 203), torch.randn(203, 107)
    compiled = bt.jit("cpu", dynamic=False)(torch_product).lower(x, w).compile()
    torch.testing.assert_close(compiled(x, w), x @ w, rtol=1e-4, atol=1e-4)
    loops = re.findall(r"range\(T\.min\(|range\(T\.max\(T\.min\(.*T\.max", compiled.source("tir"))
    assert not loops


def torch_product(x, w):
    return x @ w
