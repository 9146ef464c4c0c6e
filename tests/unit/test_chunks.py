"""Functions of functions on the CPU: one at a time, chunk by chunk."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.cpu.formulas import FORMULAS

SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-42, -1e-42, 88.0, -104.0, 3e38)


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    torch.manual_seed(0)


def mish(x):
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


def both(x):
    return torch.exp(torch.sin(x)) + torch.log1p(torch.exp(torch.sin(x)) * torch.sigmoid(-x))


def power(x):
    return torch.pow(torch.sigmoid(x), torch.tanh(x) + 2)


def one_after_the_other(x):
    return torch.exp(x) * torch.sigmoid(x)


def given(shape: tuple[int, ...]) -> torch.Tensor:
    x = torch.randn(shape)
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    return x


@pytest.mark.parametrize("fn", [mish, both, power])
@pytest.mark.parametrize("shape", [(512,), (511,), (40001,), (1, 1024), (37, 1003), (7, 2, 513)])
def test_values(fn: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
    x = given(shape)
    ours, exact = bt.jit("cpu")(fn)(x), fn(x.double())
    torch.testing.assert_close(ours, exact.float(), rtol=2e-6, atol=4e-6, equal_nan=True)
    # The end of a loop is computed by the same formulas as its chunks.
    twice = bt.jit("cpu")(fn)(torch.cat([x, x], -1))
    torch.testing.assert_close(twice[..., shape[-1] :], ours, rtol=5e-7, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    x = torch.randn(3, 1700).to(dtype)
    ours = bt.jit("cpu")(mish)(x)
    exact = mish(x.double())
    error, torchs = ((y - exact).abs().max().item() for y in (ours, mish(x)))
    assert error <= 1.2 * torchs + 8 * torch.finfo(dtype).eps
    alone = bt.jit("cpu")(mish)(x[:, :500].contiguous())
    torch.testing.assert_close(ours[:, :500], alone, rtol=0, atol=0)


def test_results_beside_each_other_and_of_any_size() -> None:
    def two(x, y):
        return mish(x), mish(x + y) * y

    for dynamic in (False, True):
        compiled = bt.jit("cpu", dynamic=dynamic)(two)
        x, y = torch.randn(33, 1040), torch.randn(1040)
        for ours, theirs in zip(compiled(x, y), two(x.double(), y.double())):
            torch.testing.assert_close(ours, theirs.float(), rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("shape", [(40000,), (999, 1003), (4, 700), (3, 2, 40001)])
def test_sums_of_functions_of_functions(shape: tuple[int, ...]) -> None:
    def loss(x, y):
        return (torch.relu(x) - x * y + torch.log1p(torch.exp(-torch.abs(x)))).mean()

    def of_rows(x, y):
        return (torch.log(1 + torch.exp(x)) * y).sum(-1), torch.tanh(torch.exp(x)).amax(-1)

    x, y = torch.randn(shape), torch.rand(shape)
    for fn in (loss, of_rows):
        for dynamic in (False, True):
            ours = bt.jit("cpu", dynamic=dynamic)(fn)(x, y)
            exact = fn(x.double(), y.double())
            for found, expected in zip(torch.atleast_1d(ours), torch.atleast_1d(exact)):
                torch.testing.assert_close(found, expected.float(), rtol=2e-6, atol=1e-6)
    # Pieces of one length, of which it is known.
    source = bt.jit("cpu")(loss).lower(x, y).compile().source("tir")
    assert ("exp_chunk" in source) == (shape in ((40000,), (4, 700)))


def loops(fn: Callable[[torch.Tensor], torch.Tensor], count: int) -> list[str]:
    """The stores in the kernel's loops over a chunk, and those after them."""
    source = bt.jit("cpu")(fn).lower(torch.randn(count)).compile().source("tir")
    stores = re.findall(r"^ *(\w+)\[.*\] = (.*)$", source, re.MULTILINE)
    return [name for name, value in stores if re.search(r"T\.(exp|log|tanh|sigmoid)\(", value)]


def test_each_function_has_a_loop_of_its_own() -> None:
    assert loops(mish, 5120) == ["exp_chunk", "log_chunk", "mish"]
    # The rest of a chunk goes as it is, and so does what is less than one.
    assert loops(mish, 5130) == ["exp_chunk", "log_chunk", "mish", "mish"]
    assert loops(mish, 500) == ["mish"]
    assert loops(one_after_the_other, 5120) == ["one_after_the_other"]


def test_what_a_condition_guards_stays_under_it() -> None:
    def padded(x):
        return torch.nn.functional.pad(torch.exp(torch.sin(x)), (0, 0, 0, 3))

    x = torch.randn(40, 5000)
    compiled = bt.jit("cpu")(padded).lower(x).compile()
    torch.testing.assert_close(compiled(x), padded(x))
    assert "sin_chunk" not in compiled.source("tir")


@pytest.mark.parametrize("large", [1e3, 1e9, float("inf")])
def test_sines_of_large_arguments_among_small_ones(large: float) -> None:
    def cosines(x):
        return torch.cos(torch.cos(torch.exp(x)))

    def sine(x):
        return torch.exp(torch.sin(torch.abs(x))), torch.sigmoid(torch.cos(1 + torch.rsqrt(x)))

    x = torch.rand(5120) * 3
    x[3], x[700] = large, 1 / large**2
    small = x.clone()
    small[3] = torch.tensor(large).log()
    torch.testing.assert_close(bt.jit("cpu")(cosines)(small), cosines(small), equal_nan=True)
    for ours, theirs in zip(bt.jit("cpu")(sine)(x), sine(x)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


ACTIVATIONS = {
    "softplus": lambda x: F.softplus(x, 2.0),
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "mish": F.mish,
    "logsigmoid": lambda x: F.logsigmoid(x),
    "chosen": lambda x: torch.where(x > 1, torch.log(torch.exp(x) + 1), torch.tanh(x)),
    "logit": lambda x: torch.logit(torch.sigmoid(x), 1e-3),
}


@pytest.mark.parametrize("size", [(64, 128), (100, 101), (7, 3)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_functions_that_are_chosen_from_are_formulas(name: str, size: tuple[int, ...]) -> None:
    """None is in a branch, which would call the library for each number."""
    fn, x = ACTIVATIONS[name], torch.linspace(-30, 30, math.prod(size)).view(size)
    compiled = bt.jit("cpu")(fn).lower(x).compile()
    torch.testing.assert_close(compiled(x).double(), fn(x.double()), rtol=2e-5, atol=1e-6)
    called = set(re.findall(r"(?:callq?|bl|jmp)\s+(\w+)", compiled.source("asm")))
    assert not called & {f"{name}f" for name in FORMULAS}


def test_what_runs_again_is_by_itself() -> None:
    """Beside functions that read chunks: TVM may give their values the memory of those."""

    def sine_or_softplus(x, y):
        return torch.where(x > 0, torch.sin(y), torch.log1p(torch.exp(x)))

    def remainder_or_softplus(x, y):
        return torch.where(x > 0, torch.fmod(y, 1.5), F.softplus(x) * torch.cos(y))

    x = torch.linspace(-3, 1, 1024)
    for large in (1e6, 3e9, 1e30):
        y = torch.full((1024,), large)
        for fn in (sine_or_softplus, remainder_or_softplus):
            found = bt.jit("cpu", dynamic=False)(fn)(x, y)
            torch.testing.assert_close(
                found.double(), fn(x.double(), y.double()), rtol=1e-5, atol=1e-6
            )
