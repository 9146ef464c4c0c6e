"""Writes of what only torch can run: operators with ``mutates_args``, and ``mark_dirty``."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.machines import by_machine

PLACES: list[int] = []
"""Where what the operators below wrote to began, at each run of one."""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    PLACES.clear()
    yield
    PLACES.clear()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@torch.library.custom_op("writes::store", mutates_args=("cache",))
def store(cache: torch.Tensor, x: torch.Tensor, at: int) -> None:
    PLACES.append(cache.data_ptr())
    cache[at] = x.sum(0)


@torch.library.custom_op("writes::add_to", mutates_args=("total",))
def add_to(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    PLACES.append(total.data_ptr())
    total += x
    return total * 3


@add_to.register_fake
def _(total, x):
    return torch.empty_like(total)


@torch.library.custom_op("writes::keep", mutates_args=("keys", "values"))
def keep(
    k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
) -> None:
    PLACES.extend((keys.data_ptr(), values.data_ptr()))
    keys.view(-1, k.shape[-1])[at] = k
    values.view(-1, k.shape[-1])[at] = v


@torch.library.custom_op("writes::count", mutates_args=("counts",))
def count(counts: list[torch.Tensor], x: torch.Tensor | None = None, *, by: int = 1) -> None:
    PLACES.extend(each.data_ptr() for each in counts)
    for each in counts:
        each += by if x is None else by * x


@torch.library.custom_op("writes::fails", mutates_args=("x",))
def fails(x: torch.Tensor) -> None:
    PLACES.append(x.data_ptr())
    x += 1
    raise ValueError("no more than that")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape).float()


def to_what_it_computed(x, y):
    z = x * 2
    return add_to(z, y) + z


def to_an_argument(x, y):
    return add_to(x, y * 2) + x


def to_a_row(x, y):
    add_to(x[1], y[0])
    return x * 2


def to_a_row_and_the_rest(x, y):
    store(x[1:], y, 0)
    x[0] = 5
    add_to(x[:, 2], y[:, 0])
    return x * 2


def without_a_result(x, y):
    store(x, y * 2, 1)
    return x.sum(1) + 1


def of_autograd(x, y):
    z = x.sin()
    found = Doubled.apply(z)
    found += y
    return found * z


def of_both(x, y):
    count([x, y], x.sum(0), by=2)
    count([y])
    return x + y


def of_what_is_read_before(x, y):
    before = x[1].clone()
    store(x, y, 1)
    return before @ y.T, before


def of_what_was_computed_before(x, y):
    before = x * 2
    total = x.sum()
    store(x, y, 1)
    return before + x, total


def of_one_that_is_transposed(x, y):
    store(x.T, y[:, :4], 1)
    return x + 1


def between_other_writes(x, y):
    x[2] = y[0]
    store(x, y, 1)
    x[:, 1:] += 1
    return x.sum()


def and_then_all_of_it(x, y):
    store(x, y, 1)
    x.mul_(2)
    x.copy_(x.flip(1))
    return x.sum()


def that_are_reversed_later(x, y):
    store(x, y, 1)
    x.copy_(x.flip(0))


WRITES = [to_what_it_computed, to_an_argument, to_a_row, to_a_row_and_the_rest, without_a_result]
WRITES += [of_autograd, of_both, of_what_is_read_before, of_what_was_computed_before]
WRITES += [of_one_that_is_transposed, between_other_writes, and_then_all_of_it]
WRITES += [that_are_reversed_later]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", WRITES)
def test_writes_of_what_torch_runs(fn: Callable, dynamic: bool) -> None:
    args = [drawn(4, 5), drawn(4, 5)]
    ours, theirs, machines = (copy.deepcopy(args) for _ in range(3))
    jitted = bt.jit("cpu", dynamic=dynamic)(fn)
    expected = fn(*theirs)
    for given, run in (
        (ours, jitted),
        (machines, by_machine(jitted.lower(*args).compile())),
    ):
        torch.testing.assert_close((run(*given), given), (expected, theirs))
    expected = fn(*theirs)
    torch.testing.assert_close((jitted(*ours), ours), (expected, theirs))


def test_gradients_through_writes_of_what_torch_runs() -> None:
    args, grad = [drawn(4, 5).requires_grad_() for _ in range(2)], torch.randn(4, 5)
    ours = torch.autograd.grad(bt.jit("cpu")(of_autograd)(*args), args, grad)
    theirs = torch.autograd.grad(of_autograd(*args), args, grad)
    torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- where the caller's memory lies


def to_keys_and_values(x, cache, at):
    keys, values = cache.unbind(0)
    keep(x * 2, x + 1, keys, values, at)
    return keys.sum((0, 1)) + values.amax((0, 1))


def of_two_layers(x, caches, at):
    for cache in caches:
        keep(x * 2, x + 1, cache[0], cache[1], at)
        x = x + cache[0, 0, :3] + cache[1].mean()
    return x


def twice(x, cache, at):
    keep(x * 2, x + 1, cache[0], cache[1], at)
    keep(x * 3, x - 1, cache[1], cache[0], at + 1)
    return cache * 2


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", drawn(2, 2, 4, 8))

    def forward(self, x, at):
        keep(x * 2, x + 1, self.cache[0], self.cache[1], at)
        return x + self.cache[1].mean()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [to_keys_and_values, of_two_layers, twice])
def test_arguments_are_written_to_where_they_lie(fn: Callable, dynamic: bool) -> None:
    cache = [drawn(2, 2, 4, 8), drawn(2, 2, 4, 8)] if fn is of_two_layers else drawn(2, 2, 4, 8)
    args = [drawn(3, 8), cache, torch.tensor([1, 5, 3])]
    jitted = bt.jit("cpu", dynamic=dynamic)(fn)
    expected = fn(*(theirs := copy.deepcopy(args)))
    for run in (jitted, by_machine(jitted.lower(*args).compile()), jitted):
        ours = copy.deepcopy(args)
        PLACES.clear()
        torch.testing.assert_close((run(*ours), ours), (expected, theirs))
        caches = ours[1] if isinstance(ours[1], list) else [ours[1]]
        assert {*PLACES} == {part.data_ptr() for each in caches for part in each}


def test_buffers_are_written_to_where_they_lie() -> None:
    model = Attention()
    other, x, at = copy.deepcopy(model), drawn(3, 8), torch.tensor([1, 5, 3])
    torch.testing.assert_close(bt.jit("cpu")(model)(x, at), other(x, at))
    assert PLACES[:2] == [model.cache[0].data_ptr(), model.cache[1].data_ptr()]
    torch.testing.assert_close(model.cache, other.cache)


AT_HOME = [to_an_argument, to_a_row, to_a_row_and_the_rest, without_a_result, of_both]
AT_HOME += [of_what_is_read_before, between_other_writes, and_then_all_of_it]


@pytest.mark.parametrize("fn", AT_HOME)
def test_no_copies_of_arguments(fn: Callable) -> None:
    x, y = drawn(4, 5), drawn(4, 5)
    bt.jit("cpu")(fn)(x, y)
    memory = [range(each.data_ptr(), each.data_ptr() + each.nbytes) for each in (x, y)]
    assert PLACES
    assert all(any(place in each for each in memory) for place in PLACES)


def what_is_returned_too(x, y):
    before = x.T
    add_to(x, y)
    return before, x


def what_is_compared_afterwards(x, y):
    before = x.clone()
    add_to(x, y)
    return before.flip(0) - x


@pytest.mark.parametrize(
    "fn", [what_is_returned_too, what_is_compared_afterwards, of_what_was_computed_before]
)
def test_what_is_needed_as_it_was(fn: Callable) -> None:
    args = [drawn(4, 5), drawn(4, 5)]
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    torch.testing.assert_close((bt.jit("cpu")(fn)(*ours), ours), (fn(*theirs), theirs))


def test_arguments_that_are_not_contiguous() -> None:
    args = [drawn(5, 4).T, drawn(4, 10)[:, ::2]]
    ours, theirs = (
        [torch.empty_strided(x.shape, x.stride()).copy_(x) for x in args] for _ in range(2)
    )
    for fn in (to_an_argument, to_a_row, of_both):
        torch.testing.assert_close((bt.jit("cpu")(fn)(*ours), ours), (fn(*theirs), theirs))


def test_writes_are_counted() -> None:
    """As autograd asks whether what it has saved was written to since."""
    x, y = drawn(4, 5), drawn(4, 5)
    before = x._version
    bt.jit("cpu")(to_an_argument)(x, y)
    assert x._version > before


def and_fails(x, y):
    x[0] = 2
    z = y * 2
    fails(x)
    return z


def test_what_an_operator_that_fails_has_written() -> None:
    """Torch has it as well; and it runs once."""
    args = [drawn(4, 5), drawn(4, 5)]
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    jitted = bt.jit("cpu")(and_fails)
    for _ in range(2):
        PLACES.clear()
        for fn, given in ((jitted, ours), (and_fails, theirs)):
            with pytest.raises(ValueError, match="no more than that"):
                fn(*given)
        assert len(PLACES) == 2
        torch.testing.assert_close(ours, theirs)


def test_nothing_keeps_what_was_written_to() -> None:
    x, y = drawn(4, 5), drawn(4, 5)
    bt.jit("cpu")(of_both)(x, y)
    alive = [weakref.ref(x.untyped_storage()), weakref.ref(x)]
    del x
    gc.collect()
    assert [each() for each in alive] == [None, None]


@bt.library_op("writes::steps", mutates_args=["cache"])
def steps(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    store(cache, x, 1)
    return cache.sum(1) * 2


def test_within_an_operator_of_ours() -> None:
    args = [drawn(4, 5), drawn(4, 5)]
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    torch.testing.assert_close((steps(*ours), ours), (steps.fn(*theirs), theirs))


def to_one_of_autograd(x):
    return Doubled.apply(x[0]) + x


class Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, grad


def to_the_memory_of_two(x):
    y = x * 2
    return Moved.apply(y[0], y[1])


def test_writes_to_the_memory_of_two_arguments() -> None:
    """Which a function of autograd may give back, unlike an operator of a library."""
    with pytest.raises(bt.CompileError, match=r"`apply` writes to the memory of two[^$]*clone"):
        bt.jit("cpu")(to_the_memory_of_two)(torch.ones(3, 4))


def to_a_part_of_another(x):
    return add_to(x, x[0])


def test_what_torch_refuses_of_one_memory() -> None:
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        bt.jit("cpu")(to_a_part_of_another)(torch.ones(3, 4))
