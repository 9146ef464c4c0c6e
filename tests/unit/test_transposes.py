"""Transposes on the CPU: squares that turn over in vector registers, at any edge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.unit.kernels import rules_of

F64 = torch.float64
SIDES = (16, 17, 31, 64, 65, 1003)
SHAPES = [(m, n) for m in SIDES for n in SIDES if m * n >= 32768]
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    torch.manual_seed(0)


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return (100 * torch.rand(shape)).to(dtype)


def check(
    fn: Callable[..., torch.Tensor], *args: torch.Tensor, exactly: bool = True
) -> bt.Compiled:
    compiled = bt.jit("cpu")(fn).lower(*args).compile()
    limits = {"rtol": 0.0, "atol": 0.0} if exactly else {}
    torch.testing.assert_close(compiled(*args), fn(*args), **limits)
    return compiled


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(203, 199), (1003, 64), (64, 1003), (2048, 48)])
def test_types(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check(turned, values(shape, dtype))
    if dtype != torch.bool:
        check(added, values(shape, dtype), values(shape[::-1], dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_edges(shape: tuple[int, int]) -> None:
    check(added, values(shape), values(shape[::-1]))


@pytest.mark.parametrize("shape", [(3, 7), (3, 20000), (20000, 3), (15, 4000), (4000, 15)])
def test_what_has_less_than_a_square(shape: tuple[int, int]) -> None:
    assert "T.Shuffle" not in check(turned, values(shape)).source("tir")


def test_of_each_matrix() -> None:
    check(lambda x: x.transpose(1, 2).contiguous(), values((5, 100, 130)))
    check(lambda x: x.transpose(1, 2).contiguous(), values((2, 33, 5, 130)))
    check(lambda x: x.permute(2, 0, 1).contiguous(), values((33, 17, 130)))
    check(lambda x: x.permute(0, 3, 1, 2).contiguous(), values((2, 40, 41, 64)))


def test_beside_others() -> None:
    def several(x, y, row, column):
        return torch.where(x.t() < 50, torch.exp(-y.t() / 100), x.t() * row + column)

    x, y = values((200, 233)), values((200, 233))
    check(several, x, y, values((200,)), values((233, 1)), exactly=False)

    def mixed(x, y):  # of other sizes
        return x.t().double() * y.t()

    check(mixed, values((200, 233)), values((200, 233), torch.int8))

    def both(x):
        return x + x.t()

    check(both, values((517, 517)))

    def padded(x):
        return torch.nn.functional.pad(x.t(), (1, 2, 3, 4))

    check(padded, values((200, 233)))

    def sliced(x):
        return x.t()[3:, 5:] * 2

    check(sliced, values((200, 233)))

    def strided(x, y, places):
        return x.t() + y[:, ::2] * y.index_select(1, places)

    places = torch.randint(0, 400, (200,))
    check(strided, values((200, 233)), values((233, 400)), places, exactly=False)


@pytest.mark.parametrize("shape", [(1003, 500), (200, 233), (256, 512)])
def test_parts_of_tensors(shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, y = values(shape), values((100, rows))

    def sliced(x):
        return x.t()[: columns - 10, : rows - 3] + 1

    def later(x):
        return x.t()[7:, 5:] * 2

    def padded(x):
        return torch.nn.functional.pad(x.t(), (0, 37, 2, 0))

    def joined(x, y):
        return torch.cat([x.t(), y])

    def stored(x, y):
        z = x.clone()
        z[:100, : rows // 2] = y[:, : rows // 2].t().t()
        z[50:150, 20:120] = y[:, :100].t()
        return z

    for fn, args in ((sliced, (x,)), (later, (x,)), (padded, (x,)), (joined, (x, y))):
        check(fn, *args)
    check(stored, values((200, rows)), y)


@pytest.mark.parametrize("rows", [3, 5, 15, 16])
def test_parts_of_few_lines(rows: int) -> None:
    check(lambda x, y: torch.cat([x.t(), y], 1), values((rows, 4000)), values((4000, 30)))


@pytest.mark.parametrize("shape", [(1000, 8, 8), (300, 15, 17), (300, 17, 15), (4096, 3, 16)])
def test_small_matrices(shape: tuple[int, int, int]) -> None:
    check(lambda x: x.transpose(1, 2).contiguous(), values(shape))


def test_sums_across_lines_lose_no_digits() -> None:
    def total(x, y):
        return (x.t() * y).sum()

    def mean(x):
        return torch.exp(x.t()).mean()

    def flipped(x):
        return (x * x.flip(1)).sum()

    def variation(x):
        return (x[:, 1:] - x[:, :-1]).abs().mean()

    x, y = torch.rand(1200, 1200), torch.rand(1200, 1200)
    for fn, args in ((total, (x, y)), (mean, (x,)), (flipped, (x,)), (variation, (x,))):
        exact = fn(*(value.double() for value in args)).float()
        torch.testing.assert_close(bt.jit("cpu")(fn)(*args), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("depth", [16, 64, 96])
@pytest.mark.parametrize("width", [16, 64, 256])
def test_weights_that_are_computed(width: int, depth: int, dtype: torch.dtype) -> None:
    def of_integers(x, weight):
        return F.linear(x, weight.to(x.dtype))

    def scaled(x, weight, scales):
        return F.linear(x, weight * scales[:, None])

    within = 4 * torch.finfo(dtype).eps
    integers = torch.randint(-127, 127, (width, depth), dtype=torch.int8)
    weight, scales = torch.randn(width, depth).to(dtype), torch.rand(width).to(dtype)
    for rows in (2, 3, 4):
        x, grad = torch.randn(rows, depth).to(dtype), torch.randn(rows, width).to(dtype)
        for fn, args in ((of_integers, (x, integers)), (scaled, (x, weight, scales))):
            found, exact = [], []
            for function, dest, kind in ((bt.jit("cpu")(fn), found, dtype), (fn, exact, F64)):
                own = [arg.to(kind) if arg.is_floating_point() else arg for arg in args]
                leaves = [arg.detach().requires_grad_() for arg in own if arg.is_floating_point()]
                result = function(*leaves, *own[len(leaves) :])
                dest += [result, *torch.autograd.grad(result, leaves, grad.to(kind))]
            for ours, theirs in zip(found, exact):
                size = float(theirs.detach().abs().max())
                torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=within * size)


def test_several_results() -> None:
    def several(x):
        y = x.t()
        return y + 1, y * 2

    x = values((300, 211))
    for ours, theirs in zip(bt.jit("cpu")(several)(x), several(x)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_sizes_that_a_call_tells() -> None:
    any_size = bt.jit("cpu", dynamic=True)(added)
    for shape in ((200, 233), (16, 3000), (7, 9), (1024, 2048)):
        x, y = values(shape), values(shape[::-1])
        torch.testing.assert_close(any_size(x, y), added(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1003, 1000), (1024, 2048)])
def test_vectors_are_shuffled_in_registers(shape: tuple[int, int]) -> None:
    compiled = check(added, values(shape), values(shape[::-1]))
    scheduled = bt.jit("cpu")(added).lower(values(shape), values(shape[::-1])).schedule()
    assert rules_of(scheduled.mod) == ["Elementwise"]
    llvm = compiled.source("llvm")
    assert "shufflevector <8 x float>" in llvm
    assert "gather" not in llvm
    assert "scatter" not in llvm
    assert "insertelement" not in llvm.partition("__tvm_parallel_lambda")[2]
