"""Assignments at numbers of the run time beside numbers and slices that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_steps import check, kernels_in_loops, numbers

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def number_behind(x, v, k):
    x[k, 0] = v
    return x


def number_before(x, v, k):
    x[0, k] = v * 2
    return x


def numbers_around(x, v, k):
    x[k, -1, 2] = v[0]
    x[k - 3, 3, k] = 7.5
    return x


def part_behind(x, v, k):
    x[k, 1:3] = v
    return x


def part_before(x, v, k):
    x[1:3, k] = v
    return x


def every_other(x, v, k):
    x[k, ::2] = v
    x[k, 1::2, 4:] = v[:2]
    return x


def all_of_a_dimension(x, v, k):
    x[:, k] = v
    x[..., k] = 3
    return x


def nothing(x, v, k):
    x[k, 2:2] = v
    return x


def added(x, v, k):
    x[k, k, 1:-1] += v[1:-1]
    x[:, 1:, k] *= 2
    return x


def of_a_view(x, v, k):
    y = x[1:]
    y[k, 0] = v
    return x, y


def of_a_transpose(x, v, k):
    x.transpose(0, 2)[k, 0] = v[:4]
    return x


def with_another_dimension(x, v, k):
    x[k, 0, None] = v
    return x


FUNCTIONS = [
    *(number_behind, number_before, numbers_around, part_behind, part_before, every_other),
    *(all_of_a_dimension, nothing, added, of_a_view, of_a_transpose, with_another_dimension),
]


def copied(fn: Callable[..., Any]) -> Callable[..., Any]:
    def on_a_copy(x, v, k):
        return fn(x.clone(), v, k)

    return on_a_copy


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x, v, fn = numbers(4, 5, 6), numbers(6), copied(fn)
    for dynamic in (None, True):
        compiled = bt.jit("cpu", dynamic=dynamic)(fn)
        for place in (0, 2, -1):
            k = torch.tensor(place, dtype=dtype)
            torch.testing.assert_close(compiled(x, v, k), fn(x, v, k), rtol=0, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_gradients(fn: Callable[..., Any]) -> None:
    k, fn = torch.tensor(2), copied(fn)
    ours, theirs = ([numbers(4, 5, 6), numbers(6)] for _ in range(2))
    for leaves, run in ((ours, bt.jit("cpu")(fn)), (theirs, fn)):
        found = run(*(x.requires_grad_() for x in leaves), k)
        sum(y.sin().sum() for y in (found if isinstance(found, tuple) else (found,))).backward()
    for x, y in zip(ours, theirs):
        expected = torch.zeros_like(y) if y.grad is None else y.grad
        torch.testing.assert_close(
            torch.zeros_like(x) if x.grad is None else x.grad, expected, rtol=1e-13, atol=1e-15
        )


@needs_gpu
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_on_gpus(fn: Callable[..., Any]) -> None:
    args, fn = (numbers(4, 5, 6).float(), numbers(6).float(), torch.tensor(2)), copied(fn)
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    torch.testing.assert_close(gpu.call(compiled, args), fn(*args), rtol=0, atol=0)


def test_places_outside_are_not_written() -> None:
    x, v = numbers(4, 5, 6), numbers(6)
    found = bt.jit("cpu")(copied(number_behind))(x, v, torch.tensor(11))
    torch.testing.assert_close(found, x, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("index", "width", "why"),
    [
        (9, 6, "index 9 is out of bounds for dimension 1 with size 5"),
        (0, 4, r"values of shape \[4\] cannot be broadcast to \[6\]"),
    ],
)
def test_what_is_refused(index: int, width: int, why: str) -> None:
    def fn(x, v, k):
        x = x.clone()
        x[k, index] = v
        return x

    with pytest.raises(bt.CompileError, match=why):
        bt.jit("cpu")(fn)(numbers(4, 5, 6), numbers(width), torch.tensor(1))


def three_each(xs, h, w):
    out = xs.new_zeros(xs.shape[0], 3, h.shape[0])
    for t in range(xs.shape[0]):
        for k in range(3):
            h = torch.tanh(xs[t] @ w + h)
            out[t, k] = h
    return out, h


def at_once(xs, h, w):
    """Two rows of one kernel, of which none is handed on."""
    out = xs.new_zeros(xs.shape[0], 2, h.shape[0])
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h)
        out[t, 0] = h * 2
        out[t, 1] = h + 1
    return out, h


def one_after_the_other(xs, h, w):
    """The second row is of what is read of the first."""
    out = xs.new_zeros(xs.shape[0], 2, h.shape[0])
    for t in range(xs.shape[0]):
        out[t, 0] = torch.tanh(xs[t] @ w + h)
        out[t, 1] = torch.sin(out[t, 0] @ w)
    return out


def the_same_twice(xs, h, w):
    out = xs.new_zeros(xs.shape[0], 2, h.shape[0])
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h)
        out[t, 1] = h * 2
        out[t, 1] = h + 1
    return out, h


def perhaps_the_same(xs, h, w):
    out = xs.new_zeros(xs.shape[0], 2, h.shape[0])
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h)
        out[t, 1] = h * 2
        out[min(t, 7), 1] = h + 1
    return out, h


def crossing(xs, h, w):
    """Rows of two steps, of which the later one of a step is the earlier one of the next."""
    out = xs.new_zeros(xs.shape[0] + 1, 2, h.shape[0])
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h + out[t, 0])
        out[t, 0] = h * 2
        out[t + 1, 0] = h + 1
    return out, h


@pytest.mark.parametrize(
    ("fn", "kernels"),
    [(three_each, 2), (at_once, 1), (one_after_the_other, 3)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_rows_of_a_step_are_written_where_they_lie(fn: Callable[..., Any], kernels: int) -> None:
    compiled = check(fn, numbers(50, 6), numbers(6), numbers(6, 6))
    assert kernels_in_loops(compiled) == kernels


@pytest.mark.parametrize("fn", [the_same_twice, perhaps_the_same, crossing])
def test_rows_that_may_be_one(fn: Callable[..., Any]) -> None:
    check(fn, numbers(50, 6), numbers(6), numbers(6, 6))


def in_two_loops(xs, h, w):
    out = xs.new_zeros(xs.shape[0], 40, h.shape[0])
    for t in range(xs.shape[0]):
        for k in range(40):
            h = torch.tanh(xs[t] @ w + h * 0.5 + k * 0.01)
            out[t, k] = h
    return out, h


def now_and_then(xs, h, w):
    out = torch.zeros_like(xs)
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h)
        if t % 4 == 1:
            out[t] = h * 2
        elif t > 30:
            for k in range(40):
                h = h * 0.9 + k * t
                if k == t - 20:
                    out[k] = h
    return out, h


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [in_two_loops, now_and_then])
def test_numbers_of_loops_are_numbers_in_what_is_inside(
    fn: Callable[..., Any], dynamic: bool
) -> None:
    """No kernel stores them, and no condition on them asks a tensor."""
    compiled = check(fn, numbers(50, 6), numbers(6), numbers(6, 6), dynamic=dynamic)
    lines, _ = compiled._specializations.newest.runner._launcher.lines({})
    assert not any(".item()" in line or "dtype_int64" in line for line in lines)
    if fn is in_two_loops:
        assert kernels_in_loops(compiled) == (2 if dynamic else 1)


def test_numbers_that_are_read_once_are_not_checked() -> None:
    def fn(xs, h):
        for t in range(40):
            h = torch.tanh(xs[t] + h * 0.5)
        return h

    compiled = check(fn, numbers(40, 8), numbers(8))
    assert "if_then_else" not in compiled.lower(numbers(40, 8), numbers(8)).schedule().as_text()


@pytest.mark.parametrize("fn", [in_two_loops, now_and_then, three_each, at_once])
def test_gradients_of_loops(fn: Callable[..., Any]) -> None:
    ours, theirs = ([numbers(50, 6), numbers(6), numbers(6, 6) * 0.3] for _ in range(2))
    for leaves, run in ((ours, bt.jit("cpu")(fn)), (theirs, fn)):
        out, h = run(*(x.requires_grad_() for x in leaves))
        (out.sin().sum() + h.sum()).backward()
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-12)


def of_eight_bits(x, v):
    for i in range(200):
        if torch.as_tensor(i).to(torch.int8) < 0:
            v = v + 1
    return v


def of_sixteen_bits(x, v):
    for i in range(200):
        if torch.as_tensor(i, dtype=torch.int16) * 300 < 0:
            v = v + 1
    return v


def of_thirty_two_bits(x, v):
    for i in range(200):
        if torch.as_tensor(i).to(torch.int32) * 2**25 < 0:
            v = v + 1
    return v


def of_no_bits(x, v):
    for i in range(300):
        if torch.as_tensor(i).to(torch.int8):
            v = v + 1
        if (torch.as_tensor(i) > 5) + (torch.as_tensor(i) > 7) == torch.tensor(True):
            v = v + 2
    return v


def of_what_is_written(x, v):
    x = x.clone()
    for i in range(200):
        if torch.as_tensor(i).to(torch.int8) < 0:
            x[0] = i
    return x


@pytest.mark.parametrize(
    "fn", [of_eight_bits, of_sixteen_bits, of_thirty_two_bits, of_no_bits, of_what_is_written]
)
def test_conditions_of_narrow_integers(fn: Callable[..., Any]) -> None:
    """They wrap around, as Python's do not."""
    check(fn, numbers(6, 5), numbers(5))


@pytest.mark.parametrize("index", [True, False])
def test_bools_are_no_indices(index: bool) -> None:
    def fn(x, v, k):
        x = x.clone()
        x[k, index] = v
        return x

    with pytest.raises(bt.CompileError, match="select all or nothing"):
        bt.jit("cpu")(fn)(numbers(4, 6), numbers(6), torch.tensor(1))
