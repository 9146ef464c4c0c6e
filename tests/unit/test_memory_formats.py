"""Arguments that are not contiguous are read as they lie, and results lie as torch's do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.types import MemoryFormat
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_shortcuts import shortly

IMAGES = (2, 5, 6, 7)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(seed: int = 0) -> torch.Tensor:
    return numbers(*IMAGES, seed=seed).to(memory_format=torch.channels_last)


def product(x, w):
    return x @ w


def scaled(x, w):
    return torch.relu(x) * w[:, None, None]


def summed(x, y):
    return x + y


def softmax(x):
    return x.softmax(-1)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (numbers(2, 3), None),
        (numbers(2, 3).t(), MemoryFormat((1, 0))),
        (images(), MemoryFormat((0, 2, 3, 1))),
        (numbers(5).expand(3, 5), MemoryFormat((0, 1), frozenset({0}))),
        (numbers(3, 1).expand(3, 4).t(), MemoryFormat((0, 1), frozenset({0}))),
        (numbers(1, 1).expand(2, 2), MemoryFormat((0, 1), frozenset({0, 1}))),
        (numbers(2, 1, 3).transpose(0, 2), MemoryFormat((1, 2, 0))),
        (numbers(4, 6)[:, :3], MemoryFormat((0, 1), gaps=((1, 6),))),
        (numbers(4, 6)[::2].t(), MemoryFormat((1, 0), gaps=((0, 12),))),
        (numbers(4, 6)[:1, :3], None),
        (numbers(2, 5, 3, 4)[:, :, 1], MemoryFormat((0, 1, 2), gaps=((2, 12),))),
        (numbers(2, 5, 6)[:, 1:4, 2:4], MemoryFormat((0, 1, 2), gaps=((1, 5), (2, 6)))),
        (numbers(4, 6)[:, :3].expand(2, 4, 3), MemoryFormat((0, 1, 2), frozenset({0}), ((2, 6),))),
        (numbers(4, 6)[:, ::2], None),
        (numbers(4, 6)[:, 1], None),
        (torch.arange(9.0).as_strided((3, 3), (1, 1)), None),
        (torch.arange(9.0).as_strided((3, 3), (2, 1)), None),
        (torch.arange(30.0).as_strided((2, 3, 2), (11, 3, 1)), None),
        (numbers(0, 3).t(), None),
    ],
)
def test_how_a_tensor_lies(tensor: torch.Tensor, expected: MemoryFormat | None) -> None:
    found = MemoryFormat.of(tensor)
    assert found == expected
    if found is not None:
        memory = found.memory(tensor)
        assert found.is_memory(memory)
        assert list(memory.shape) == found.read(tensor.shape)
        assert torch.equal(memory.permute(found.inverse).expand(tensor.shape), tensor)
        copy = found.copied(memory)
        assert found.is_memory(copy)
        assert torch.equal(copy, memory)
        whole = torch.zeros(found.stored(tensor.shape))
        part = whole[tuple(map(slice, memory.shape))]
        assert part.stride() == whole.stride()
        assert found.is_memory(part)


def check(fn: Any, *args: Any, within: float = 1e-5, kernels: int = 1) -> Any:
    """Compare calls of all kinds with torch in float64; the compiled function."""
    exact = fn(*(x.double() for x in args))
    jitted = bt.jit("cpu", dynamic=False)(fn)
    compiled = jitted.lower(*args).compile()
    assert len(compiled.kernels) == kernels
    jitted(*args)
    for found in (compiled(*args), jitted(*args), shortly(jitted, *args)):
        torch.testing.assert_close(found.double(), exact, rtol=within, atol=within * 10)
    on_gpu = bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.call(on_gpu, args)
        torch.testing.assert_close(found.double(), exact, rtol=within, atol=within * 10)
    return jitted


def test_transposed_operands_are_not_copied() -> None:
    check(product, numbers(6, 40), numbers(30, 40, seed=1).t())
    check(product, numbers(40, 6).t(), numbers(40, 30, seed=1))
    check(product, numbers(2, 3, 5, 8), numbers(2, 3, 7, 8, seed=1).mT)
    heads = numbers(2, 9, 3, 8).transpose(1, 2), numbers(2, 9, 3, 8, seed=1).permute(0, 2, 3, 1)
    check(product, *heads)


def test_results_lie_as_the_arguments_do() -> None:
    jitted = check(scaled, images(), numbers(5, seed=1))
    found = jitted(images(), numbers(5, seed=1))
    assert found.stride() == scaled(images(), numbers(5, seed=1)).stride()
    assert found.is_contiguous(memory_format=torch.channels_last)
    # The kernel goes through memory from front to back.
    assert "w[ax3_fused]" in jitted.source("tir")
    transposed = check(summed, numbers(30, 40).t(), numbers(30, 40, seed=1).t())
    assert transposed(numbers(30, 40).t(), numbers(30, 40, seed=1).t()).stride() == (1, 40)


def test_several_results_lie_as_the_arguments_do() -> None:
    def both(x, y):
        return torch.sigmoid(x), x * y

    args = images(), images(1)
    jitted = bt.jit("cpu")(both)
    for _ in range(3):
        for ours, theirs in zip(jitted(*args), both(*args)):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()


def test_where_arguments_lie_in_several_ways_results_are_contiguous() -> None:
    jitted = check(summed, numbers(30, 40).t(), numbers(40, 30, seed=1))
    assert jitted(numbers(30, 40).t(), numbers(40, 30)).is_contiguous()


def test_who_asks_for_a_format_gets_contiguous_results() -> None:
    for fn in (
        lambda x: (x * 2).contiguous(),
        lambda x: x.contiguous() + 1,
        lambda x: x.clone(memory_format=torch.contiguous_format) + 1,
    ):
        jitted = bt.jit("cpu")(fn)
        for _ in range(3):
            found = jitted(images())
            torch.testing.assert_close(found, fn(images()))
            assert found.is_contiguous()


def test_rows_of_turned_arguments() -> None:
    check(softmax, numbers(33, 70).t())
    check(softmax, numbers(3, 9, 2, 40).transpose(1, 2))


def test_expanded_arguments_are_read_once() -> None:
    jitted = check(summed, numbers(30, 40), numbers(40, seed=1).expand(30, 40))
    check(summed, numbers(30, 40), numbers(30, 1, seed=1).expand(30, 40))
    check(summed, numbers(30, 40).t(), numbers(1, 1, seed=1).expand(40, 30))
    # One that is not expanded has numbers that the other's program does not read.
    args = numbers(30, 40), numbers(30, 40, seed=2)
    for _ in range(3):
        assert torch.equal(jitted(*args), summed(*args))
    expanded = numbers(40, seed=1).expand(30, 40)
    compiled = bt.jit("cpu")(summed).lower(args[0], expanded).compile()
    with pytest.raises(ValueError, match=r"BT135.*`y`"):
        compiled(*args)
    # One that has fewer elements does.
    single = numbers(1, 1, seed=3).expand(30, 40)
    assert torch.equal(compiled(args[0], single), args[0] + single)


def test_one_program_takes_tensors_that_lie_otherwise() -> None:
    x, w = numbers(6, 40), numbers(30, 40, seed=1).t()
    compiled = bt.jit("cpu")(product).lower(x, w).compile()
    for other in (w, w.contiguous(), numbers(40, 60, seed=2)[:, ::2]):
        torch.testing.assert_close(compiled(x, other), x @ other)


def test_calls_that_alternate() -> None:
    jitted = bt.jit("cpu")(summed)
    base = numbers(7, 7)
    for _ in range(4):
        for x in (base, base.t(), numbers(9, 9)[1:8, 2:9], base[0].expand(7, 7)):
            for y in (base.t(), base):
                assert torch.equal(jitted(x, y), x + y)


@pytest.mark.parametrize("dynamic", [True, None])
def test_any_sizes(dynamic: bool | None) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(lambda x, y: (x @ y.mT).relu() + x[:, :1])
    for rows, length in ((3, 5), (7, 5), (8, 9), (6, 4), (6, 4)):
        x = numbers(length, rows).t()
        for y in (numbers(rows, length, seed=1), numbers(length, rows, seed=1).t()):
            exact = (x.double() @ y.double().mT).relu() + x.double()[:, :1]
            for _ in range(3):
                torch.testing.assert_close(jitted(x, y).double(), exact, rtol=1e-5, atol=1e-5)


def test_expanded_arguments_of_any_sizes() -> None:
    jitted = bt.jit("cpu", dynamic=True)(summed)
    for rows in (3, 5, 8):
        x, y = numbers(rows, 4), numbers(4, seed=1).expand(rows, 4)
        for _ in range(3):
            assert torch.equal(jitted(x, y), x + y)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients(order: int) -> None:
    def fn(x, w):
        return torch.tanh(x * w[:, None, None]).sum(1)

    x, w = images().double(), numbers(5, seed=1).double()
    jitted = bt.jit("cpu")(fn)
    check = torch.autograd.gradcheck if order == 1 else torch.autograd.gradgradcheck
    x, w = x[:1, :, :2, :2].contiguous(memory_format=torch.channels_last), w
    assert check(jitted, (x.requires_grad_(), w.requires_grad_()))
    assert jitted(x, w).requires_grad


def test_gradients_of_transposed_weights() -> None:
    x, w = numbers(6, 40), numbers(30, 40, seed=1)
    jitted = bt.jit("cpu")(lambda x, w: F.gelu(x @ w))
    for _ in range(3):
        ours, theirs = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
        jitted(ours[0], ours[1].t()).square().sum().backward()
        F.gelu(theirs[0] @ theirs[1].t()).square().sum().backward()
        for one, other in zip(ours, theirs):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_vmap_of_transposed_arguments() -> None:
    jitted = bt.jit("cpu")(product)
    x, w = numbers(4, 6, 40), numbers(4, 30, 40, seed=1)
    for _ in range(2):
        found = torch.vmap(lambda x, w: jitted(x, w.t()))(x, w)
        torch.testing.assert_close(found, x @ w.mT, rtol=1e-5, atol=1e-5)


WEIGHT = numbers(30, 40).t()


def test_tensors_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x):
        return x @ WEIGHT

    x = numbers(6, 40, seed=1)
    jitted = bt.jit("cpu")(fn)
    assert len(jitted.lower(x).schedule().kernels) == 1
    for weight in (WEIGHT, WEIGHT.contiguous(), numbers(60, 40, seed=2)[::2].t()):
        monkeypatch.setitem(globals(), "WEIGHT", weight)
        for _ in range(4):
            torch.testing.assert_close(jitted(x), x @ weight, rtol=1e-5, atol=1e-5)


def test_arguments_that_are_written_to() -> None:
    def fn(x, y):
        x.mul_(2).add_(y)
        return x.sum()

    jitted = bt.jit("cpu")(fn)
    for _ in range(4):
        ours, theirs = numbers(4, 6).t(), numbers(4, 6).t()
        y = numbers(4, 6, seed=1).t()
        torch.testing.assert_close(jitted(ours, y), fn(theirs, y))
        assert torch.equal(ours, theirs)


def test_an_argument_that_is_returned_is_the_same() -> None:
    jitted = bt.jit("cpu")(lambda x: (x, x + 1))
    x = images()
    for _ in range(3):
        assert jitted(x)[0] is x


def test_torch_gets_tensors_as_they_lie() -> None:
    seen = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x.sort(-1).values

    bt_call = torch.library.custom_op("babytriton_tests::noted", noted, mutates_args=())
    bt_call.register_fake(torch.empty_like)
    jitted = bt.jit("cpu")(lambda x: bt_call(x) + 1)
    x = images()
    for _ in range(3):
        torch.testing.assert_close(jitted(x), x.sort(-1).values + 1)
    assert set(seen) == {x.stride()}


def test_convolutions_of_channels_last() -> None:
    x = numbers(1, 8, 20, 20).to(memory_format=torch.channels_last)
    w = numbers(16, 8, 3, 3, seed=1)
    jitted = bt.jit("cpu")(lambda x, w: F.relu(F.conv2d(x, w)))
    for _ in range(3):
        torch.testing.assert_close(jitted(x, w), F.relu(F.conv2d(x, w)), rtol=1e-4, atol=1e-4)


def test_specializations_and_the_log_tell_of_it(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("babytriton.recompiles")
    with caplog.at_level(logging.INFO, logger.name):
        jitted = bt.jit("cpu")(softmax)
        jitted(numbers(4, 4))
        jitted(numbers(4, 4).t())
    assert "argument x: in memory by axes 1, 0, before in memory as contiguous" in caplog.text
    assert "x: f32[4, 4] (in memory by axes 1, 0)" in repr(jitted.specializations()[1])


@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (3, 5, 40)])
def test_running_sums_and_products(shape: tuple[int, ...]) -> None:
    x = numbers(*shape).mT
    for fn in (lambda x: x.cumsum(-1), lambda x: x.cumprod(-1), lambda x: x.cumsum(0)):
        exact = fn(x.double())
        found = bt.jit("cpu")(fn)(x)
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
        compiled = bt.jit(target=gpu.TARGET)(fn).lower(x).compile()
        found = gpu.call(compiled, (x,))
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def branching(x):
    z = x.sum(0) if x.sum() > -1e9 else x.mean(0)
    return z, x * 2


@pytest.mark.parametrize("dynamic", [True, False])
def test_programs_that_need_a_virtual_machine(dynamic: bool) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(branching)
    for x in (numbers(4, 5).t(), numbers(4, 5).t(), numbers(6, 5).t(), numbers(4, 5)):
        for _ in range(3):
            for ours, theirs in zip(jitted(x), branching(x)):
                torch.testing.assert_close(ours, theirs)
                assert ours.shape == theirs.shape


def test_large_results() -> None:
    jitted = bt.jit("cpu")(lambda x, y: torch.tanh(x) + y)
    x, y = numbers(2048, 2100).t(), numbers(2100, 1, seed=1).expand(2100, 2048)
    for _ in range(3):
        found = jitted(x, y)
        torch.testing.assert_close(found, torch.tanh(x) + y)
    x = x.detach().requires_grad_()
    for _ in range(4):
        x.grad = None
        jitted(x, y).square().sum().backward()
        assert x.grad is not None
        exact = 2 * (torch.tanh(x) + y) * (1 - torch.tanh(x) ** 2)
        torch.testing.assert_close(x.grad, exact, rtol=1e-4, atol=1e-4)


def test_what_is_made_contiguous_is_so_for_torch() -> None:
    def needs(x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return x.clone()

    bt_call = torch.library.custom_op("babytriton_tests::needs", needs, mutates_args=())
    bt_call.register_fake(torch.empty_like)
    jitted = bt.jit("cpu")(lambda x: bt_call(x.contiguous()) + 1)
    for _ in range(3):
        assert torch.equal(jitted(numbers(4, 6).t()), numbers(4, 6).t() + 1)


@pytest.mark.parametrize("dynamic", [True, False])
def test_results_are_no_views(dynamic: bool) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(lambda x: x * 2)
    x, w = numbers(4, 6).t(), numbers(6, 4, seed=1).requires_grad_()
    for _ in range(3):
        with torch.no_grad():
            y = jitted(x)
        assert not y._is_view()
        assert y.stride() == (1, 6)
        y.mul_(w)


def test_copies_and_views_of_any_size_have_programs_of_their_own() -> None:
    jitted = bt.jit("cpu", dynamic=True)(summed)
    for _ in range(3):
        jitted(numbers(6, 9)[:, :4], numbers(6, 9)[:, :4])
    x = numbers(4, 6).t()
    for _ in range(3):
        assert jitted(x, x).stride() == (1, 6)
    count = len(jitted.specializations())
    for y in (numbers(4).expand(6, 4), numbers(6, 1).expand(6, 4), numbers(6, 4)):
        for _ in range(3):
            torch.testing.assert_close(jitted(numbers(6, 4), y), numbers(6, 4) + y)
    assert len(jitted.specializations()) == count
