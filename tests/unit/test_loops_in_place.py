"""Steps of loops write to tensors where these lie, if nothing else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def recurrence(x, h):
    out = torch.empty_like(x)
    for t in range(x.shape[0]):
        h = h * 0.9 + x[t]
        out[t] = h
    return out, h


def reads_the_last_step(x, h):
    out = torch.zeros_like(x)
    for t in range(1, x.shape[0]):
        out[t] = out[t - 1] * 0.5 + x[t]
    return out


def of_the_caller(x, h):
    for t in range(x.shape[0]):
        h = h * 0.9 + x[t]
        x[t] = h
    return h


def two_of_them(x, h):
    a = torch.zeros_like(x)
    b, c = a, a.clone()
    for t in range(x.shape[0]):
        a[t] = x[t]
        c[t] = a[t - 1] + 1
    return a, b, c


def until(x, h):
    out = torch.zeros_like(x)
    i = 0
    while i < x.shape[0] and h.sum() < 1e9:
        out[i] = x[i] + h
        h = h + 1
        i = i + 1
    return out, h, i


def nested(x, h):
    out = torch.zeros_like(x)
    for i in range(33):
        for j in range(33):
            out[i, j] = x[i, j] * i + out[i, j - 1]
    return out


def in_branches(x, h):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        if x[t].sum() > 0:
            out[t] = x[t]
        else:
            out[t] = -x[t]
            out[t - 1] += 1
    return out


def swapped(x, h):
    a, b = torch.zeros_like(x), torch.ones_like(x)
    for t in range(x.shape[0]):
        a[t] = b[t] + x[t]
        a, b = b, a
    return a, b


def kept(x, h):
    out = torch.zeros_like(x)
    total = out.sum()
    for t in range(x.shape[0]):
        before = out * 1
        out[t] += x[t]
        total = total + before.sum() + out.sum()
    return out, total


def seen_by_another_name(x, h):
    out = x * 1
    rows = out.view(-1)
    first = out
    for t in range(x.shape[0]):
        out[t] = out[t] + rows[t]
    return out, rows, first


def read_after_the_loop(x, h):
    start = x * 2
    out = start.clone()
    for t in range(x.shape[0]):
        out[t] = start[t - 1] + 1
    return out + start, start


def run_twice(x, h):
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        out[t] = x[t]
    first = out.clone()
    for t in range(x.shape[0]):
        out[t] = first[t] + out[t - 1]
    return first, out


FUNCTIONS = (
    *(recurrence, reads_the_last_step, of_the_caller, two_of_them, until, nested, in_branches),
    *(swapped, kept, seen_by_another_name, read_after_the_loop, run_twice),
)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("rows", [40, 200])  # tables of the larger ones are made at each call
def test_what_loops_write(fn: Callable[..., Any], rows: int) -> None:
    h = numbers(100)
    exact = numbers(rows, 100).double()
    wanted = fn(exact, h.double())
    compiled = bt.jit("cpu")(fn)
    for _ in range(3):  # nothing of one call is left for the next
        x = numbers(rows, 100)
        compare((compiled(x, h), x), (wanted, exact))
    assert h.equal(numbers(100))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_what_loops_write_on_gpus(fn: Callable[..., Any]) -> None:
    x, h = numbers(40, 40), numbers(40)
    exact = x.double()
    wanted = fn(exact, h.double())
    compiled = bt.jit(gpu.TARGET)(fn).lower(x, h).compile()
    for _ in range(2):
        given = x.clone()
        compare((gpu.call(compiled, (given, h)), given), (wanted, exact))


def compare(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            compare(one, other)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
    else:
        assert found == wanted


def text(fn: Callable[..., Any], *args: Any) -> str:
    return str(bt.jit("cpu")(fn).lower(*args).schedule().mod.script())


@pytest.mark.parametrize(
    "fn", [recurrence, reads_the_last_step, of_the_caller, until], ids=lambda f: f.__name__
)
def test_rows_are_written_where_they_lie(fn: Callable[..., Any]) -> None:
    assert "call_tir_inplace" in text(fn, numbers(400, 100), numbers(100))


def test_what_is_read_later_is_not_written_to() -> None:
    def every(x):
        found = torch.zeros_like(x)
        total = x * 0
        for t in range(x.shape[0]):
            old = found
            found = old.clone()
            found[t] = x[t]
            total = total + old * found
        return found, total

    x = numbers(200, 100)
    compare(bt.jit("cpu")(every)(x), every(x.double()))


def test_gradients_of_loops_that_write() -> None:
    def written(x, h):
        out = torch.zeros_like(x)
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t])
            out[t] = h
        return out.square().sum()

    x, h = numbers(40, 3).requires_grad_(), numbers(3).requires_grad_()
    found = torch.autograd.grad(bt.jit("cpu")(written)(x, h), (x, h))
    exact = x.detach().double().requires_grad_(), h.detach().double().requires_grad_()
    wanted = torch.autograd.grad(written(*exact), exact)
    compare(found, wanted)


def best_is_an_alias(x):
    best, now = x * 0, x * 1
    for _ in range(40):
        now.mul_(0.9)
        if now.sum() > best.sum():
            best = now
    return best


def an_alias_before_the_loop(x):
    a = x + 1
    c = a
    for t in range(40):
        a.add_(1)
        if x[t].sum() > 1e9:
            c = x * 2
    return c


def an_alias_of_what_parts_are_added_to(x):
    a = x * 0
    c = a
    for part in x.unbind():
        a.add_(part)
        if part.sum() > 1e9:
            c = x * 2
    return c


def an_argument_swapped_sometimes(x):
    a, c = x + 1, x
    for t in range(40):
        if a[t].sum() > 0:
            a.mul_(0.95)
            c, a = a, c
    return c


@pytest.mark.parametrize(
    "fn",
    [
        *(best_is_an_alias, an_alias_before_the_loop, an_alias_of_what_parts_are_added_to),
        an_argument_swapped_sometimes,
    ],
    ids=lambda fn: fn.__name__,
)
def test_names_that_may_be_another_ones_are_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(bt.CompileError, match=r"BT007[\s\S]*write to a clone"):
        bt.jit("cpu")(fn)(numbers(40, 4))


def test_names_that_are_never_another_ones() -> None:
    def several(x):
        best, now, a, b = x * 0, x * 1, x * 1, x * 2
        out = x * 0
        last = x[0]
        for t in range(1, 40):
            now.mul_(0.9)
            if now.sum() > best.sum():
                best = now.clone()
            a.mul_(0.9)
            if x[t].sum() > 0:
                a, b = b, a
            out[t] = last * 0.5 + x[t]
            last = out[t]
        return best, a, b, out, last

    x = numbers(40, 4)
    compare(bt.jit("cpu")(several)(x), several(x.double()))
