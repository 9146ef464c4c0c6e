"""Programs with branches and loops, which run as steps of a Python function."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.passes import steps as steps_module
from babytriton.plan import Branch, Call, Loop, Step
from babytriton.runtime import direct
from babytriton.runtime.direct import DirectLauncher


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def launcher(compiled: Any) -> Any:
    """What runs the newest program."""
    return compiled._specializations.newest.runner._launcher


def steps(compiled: Any) -> list[type[Step]]:
    """The kinds of steps of the newest program that are no calls of kernels or of torch."""
    kinds = [type(step) for step in launcher(compiled)._program.all_steps]
    return [kind for kind in kinds if kind in (Branch, Loop, Call)]


def check(fn: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The function compiled, which gives what it gives itself, at the first call and at others."""
    compiled = bt.jit("cpu", **options)(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(*arguments), fn(*arguments))
    assert isinstance(launcher(compiled), DirectLauncher)
    return compiled


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x * 2
        y = torch.sort(x).values
    else:
        y = x - 1
    return y * x


def counted(x: torch.Tensor, w: torch.Tensor) -> Any:
    total = torch.zeros_like(x)
    for t in range(50):
        total = total + x * t
        x = torch.tanh(x * w)
    return total, x


def exchanging(x: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(40):
        x, w = w * 0.5, x
    return x, w


def until(x: torch.Tensor, w: torch.Tensor) -> Any:
    steps = 0
    while x.abs().sum() < 1e3:
        x = x * 1.5 + w
        steps += 1
    return x, steps


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        if x.sum() > 0:
            for t in range(35):
                x = x * 0.9 - w * t
        else:
            x = x + w.abs() * 30
        while x.sum() > 1e3:
            x = x * 0.5
    return x


def leaving(x: torch.Tensor, w: torch.Tensor) -> Any:
    for t in range(60):
        x = x + w.abs()
        if x.sum() > 20 + t:
            break
    return x


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (counted, {Loop}),
        (exchanging, {Loop}),
        (until, {Loop, Branch}),
        (nested, {Loop, Branch}),
        (leaving, {Loop, Branch}),
    ],
)
def test_loops(fn: Callable[..., Any], kinds: set[type[Step]]) -> None:
    x, w = numbers(4, 6), numbers(4, 6) + 0.1
    compiled = check(fn, x, w)
    assert set(steps(compiled)) == kinds
    torch.testing.assert_close(compiled(-x, w), fn(-x, w))


def test_both_sides_of_a_branch() -> None:
    x = torch.ones(3, 4)
    compiled = check(branching, x)
    assert steps(compiled) == [Branch]
    torch.testing.assert_close(compiled(-x), branching(-x))


def test_sizes_that_calls_tell() -> None:
    def running(x: torch.Tensor) -> torch.Tensor:
        h = x[0] * 0
        for t in range(x.shape[0]):
            h = h * 0.5 + x[t]
        return h

    compiled = check(running, numbers(40, 6), dynamic=True)
    for rows in (2, 7, 100):
        x = numbers(rows, 6)
        torch.testing.assert_close(compiled(x), running(x))
    assert len(compiled.specializations()) == 1


def test_the_way_back_through_a_loop_is_functions_that_call_themselves() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.tanh(x * w)
        return x.sum()

    x, w = numbers(5).requires_grad_(), numbers(5).requires_grad_()
    compiled = bt.jit("cpu")(loss)
    expected = torch.autograd.grad(loss(x, w), (x, w))
    for _ in range(3):
        found = torch.autograd.grad(compiled(x, w), (x, w))
        torch.testing.assert_close(found, expected)
    program = compiled._specializations.newest.runner.differentiated
    assert program is not None


def test_what_a_loop_does_not_need_any_more_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step sees more tensors than it has states, what it computes, and what is around it."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        x = torch.sort(x + 1).values
        for _ in range(40):
            x = torch.sort(x * 0.5).values
        return x

    compiled = check(chain, numbers(8))
    found = launcher(compiled)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    for name, call in list(found._globals.items()):
        if name.startswith("call_"):

            def counting(given: Any, call: Any = call) -> Any:
                results = call(given)
                made.extend(map(weakref.ref, results))
                alive.append(sum(x() is not None for x in made))
                return results

            monkeypatch.setitem(found._globals, name, counting)
    parameters = [numbers(8), *[None] * (len(found.parameters) - 1)]
    torch.testing.assert_close(found(parameters)[0], chain(numbers(8)))
    assert len(alive) == 41
    assert max(alive) <= 4  # values and places, of this step and of the one before


def test_torchs_errors_in_loops_are_its_own() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x - torch.multinomial(x, 2).sum() - 1
        return x

    compiled = bt.jit("cpu")(chosen)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"probability tensor|invalid multinomial"):
            compiled(torch.ones(4))


def test_each_call_of_a_loop_has_results_of_its_own() -> None:
    x, w = numbers(4, 6), numbers(4, 6)
    compiled = bt.jit("cpu")(counted)
    first = compiled(x, w)
    kept = [each.clone() for each in first]
    compiled(x + 1, w)
    for before, now in zip(kept, first):
        assert torch.equal(before, now)


def kernels_in_loops(compiled: Any) -> int:
    """How many kernels a step of a loop launches, by the lines that the newest program runs."""
    lines, _ = launcher(compiled).lines({})
    deepest = max(len(line) - len(line.lstrip()) for line in lines)
    return sum(line.startswith(" " * deepest + "kernel_") for line in lines)


def cell(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    """A row is read by a product, and another one written and left to the next step."""
    outs = []
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h @ w)
        outs.append(h)
    return torch.stack(outs), h


def from_the_end(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[xs.shape[0] - 1 - t] @ w) + h
        out[xs.shape[0] - 1 - t] = h
    return out


def two_each(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros(2 * xs.shape[0], *xs.shape[1:], dtype=xs.dtype)
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h)
        out[2 * t] = h
        out[2 * t + 1] = h.flip(0) @ w
    return out, h


@pytest.mark.parametrize(
    ("fn", "rows", "size", "launched"),
    [
        (cell, 3, 5, 1),
        (cell, 16, 128, 2),
        (from_the_end, 3, 5, 1),
        (from_the_end, 16, 128, 1),
        (two_each, 3, 5, 3),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_read_and_written_where_they_lie(
    fn: Callable[..., Any], rows: int, size: int, launched: int, dynamic: bool
) -> None:
    xs, h, w = numbers(40, rows, size), numbers(rows, size), numbers(size, size) * 0.1
    kept = h.clone()
    compiled = check(fn, xs, h, w, dynamic=dynamic)
    assert torch.equal(h, kept)
    if not dynamic:
        assert kernels_in_loops(compiled) == launched


def of_the_same_row(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for t in range(40):
        out[t] = out[t] @ w
    return out


def of_the_row_before(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for t in range(39):
        out[t + 1] = out[t] @ w
    return out


def of_another_row(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for t in range(40):
        out[39 - t] = out[t] @ w
    return out


def over_and_over(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.tanh(h @ w + xs[t])
        out[0] = h
        out[1] = h @ w
    return out, h


def overwritten_at_once(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.tanh(h @ w + xs[t])
        out[t] = h
        out[t] = h * 2
    return out, h


def overwritten_by_the_next_step(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(39):
        out[t] = h.flip(0)
        h = torch.tanh(h @ w + xs[t])
        out[t + 1] = h
    return out, h


def read_before_it_is_written(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for t in range(40):
        before = out[t] @ w
        h = torch.tanh(h @ w + before)
        after = out[t] @ w
        out[t] = h
        h = h + after
    return out, h


def always_the_first(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.tanh(h @ w + xs[t])
        out[t - t] = h
    return out, h


def of_products_alone(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(40):
        h = torch.tanh(h @ w + 0.5)
    return h


def shifted(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    older, oldest = h + 1, h - 1
    for _ in range(40):
        h, older, oldest = torch.tanh(oldest @ w + h), h, older
    return h, older, oldest


def handed_on_by_a_branch(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    for t in range(40):
        new = torch.tanh(h @ w + xs[t])
        if new.sum() > 0:  # noqa: SIM108
            h = new
        else:
            h = new * -0.5
    return h


def handed_on_by_a_loop(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(5):
        new = torch.tanh(h @ w + 0.1)
        for t in range(40):
            if xs[t].sum() > 1e9:
                new = new + xs[t]
        h = new
    return h


def once_for_several_steps(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for i in range(35):
        for t in range(40):
            h = torch.tanh(h @ w + xs[t])
            out[i] = h
    return out, h


def summed_before_it_is_written(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs.clone()
    for t in range(40):
        h = torch.tanh(h @ w)
        all_of_it = (out @ w).sum(0) * 0.01
        out[t] = h
        h = h + all_of_it
    return out, h


def by_turns(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.tanh(h @ w + xs[t])
        out[t % 2] = h
    return out, h


def written_later(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        before = out[t] @ w
        h = torch.tanh(h @ w + xs[t] + before)
        total = out.sum()
        out[t] = h
        h = h + total
    return out, h


def left_alone_afterwards(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.tanh(h @ w + xs[t])
        out[t] = h
    out += 1
    return out, h


def exchanged(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out, other = torch.zeros_like(xs), h * 2
    for t in range(40):
        h, other = other, torch.tanh(h @ w + xs[t])
        out[t] = other
    return out, h, other


def inside_of_another(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros(35, *xs.shape, dtype=xs.dtype)
    for i in range(35):
        for t in range(40):
            h = torch.tanh(h @ w + xs[t] * i)
            out[i, t] = h
    return out, h


def under_a_condition(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        x = xs[t]
        if x.sum() > 0:
            h = torch.tanh(x @ w + h)
            out[t] = h
        else:
            h = x @ w
    return out, h


def kept_by_torch(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.linalg.qr(xs[t] @ w + h)[0] @ h * 0.1
        out[t] = torch.sort(h).values
    return out, h


ROWS: list[Callable[..., Any]] = [
    of_the_same_row,
    of_the_row_before,
    of_another_row,
    over_and_over,
    always_the_first,
    once_for_several_steps,
    summed_before_it_is_written,
    of_products_alone,
    shifted,
    handed_on_by_a_branch,
    handed_on_by_a_loop,
    overwritten_at_once,
    overwritten_by_the_next_step,
    read_before_it_is_written,
    by_turns,
    written_later,
    left_alone_afterwards,
    exchanged,
    inside_of_another,
    under_a_condition,
    kept_by_torch,
]


@pytest.mark.parametrize("sizes", [(3, 5), (16, 128)])
@pytest.mark.parametrize("fn", ROWS)
def test_rows_hold_what_pythons_do(fn: Callable[..., Any], sizes: tuple[int, int]) -> None:
    """Kernels read rows of the larger size where they lie, and parts of a tensor else."""
    xs, h, w = numbers(40, *sizes), numbers(*sizes), numbers(sizes[1], sizes[1]) * 0.05
    check(fn, xs, h, w)


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("fn", [*ROWS, cell, from_the_end, two_each, nested, until])
def test_steps_as_a_gpu_takes_them(
    fn: Callable[..., Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, whose kernels take addresses as well: of all tensors but one.

    Rows of which a GPU's kernels read whole vectors begin at multiples of 64 bytes.
    """
    monkeypatch.setattr(direct, "_is_gpu", lambda device: True)
    if len(inspect.signature(fn).parameters) == 2:
        check(fn, numbers(4, 6), numbers(4, 6) + 0.1)
        return
    xs, h, w = numbers(40, 3, size), numbers(3, size), numbers(size, size) * 0.3
    compiled = check(fn, xs, h, w)
    lines = "\n".join(launcher(compiled).lines({})[0])
    assert ".data_ptr()" in lines
    if fn is from_the_end:
        assert kernels_in_loops(compiled) == (1 if size == 8 else 2)


def test_loops_without_a_step_leave_what_there_was() -> None:
    xs, h, w = numbers(40, 3, 5), numbers(3, 5), numbers(5, 5) * 0.3
    compiled = bt.jit("cpu", dynamic=True)(from_the_end)
    for rows in (40, 0, 2):
        found = compiled(xs[:rows], h, w)
        torch.testing.assert_close(found, from_the_end(xs[:rows], h, w))


def test_the_way_back_for_any_number_of_steps() -> None:
    def loss(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h, c, outs = xs[0] * 0, xs[0] * 0, []
        for t in range(xs.shape[0]):
            c = torch.sigmoid(c + xs[t])
            h = torch.tanh(xs[t] @ w + h) * c
            outs.append(h)
        return torch.stack(outs).sum() + c.sum()

    compiled = bt.jit("cpu", dynamic=True)(loss)
    for rows in (40, 57, 2):
        given = numbers(rows, 3, 5).requires_grad_(), numbers(5, 5).requires_grad_()
        expected = torch.autograd.grad(loss(*given), given)
        torch.testing.assert_close(torch.autograd.grad(compiled(*given), given), expected)


def returning_early(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 5:
        return x + 5
    if x.sum() > 4:
        return x * 4
    if x.sum() > 3:
        return x + 3
    if x.sum() > 2:
        return x * 2
    return x - 1


def test_what_is_nested_too_deep_for_python_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps_module, "_DEEPEST_BRANCHES", 3)
    compiled = bt.jit("cpu")(returning_early)
    for value in (6.0, 4.5, 3.5, 2.5, 0.0):
        x = torch.tensor([value])
        torch.testing.assert_close(compiled(x), returning_early(x))
    assert not isinstance(launcher(compiled), DirectLauncher)


def an_inner_loop_writes(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = xs * 0.5
    for i in range(35):
        before, x = out[i] @ w, xs[i] * 0.1
        for t in range(36):
            out[t] = torch.tanh(out[t] @ w + x)
        h = torch.tanh(before + h + out.sum(0))
    return out, h


def of_what_a_loop_hands_on(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    for i in range(35):
        y = xs * 0.5 + h
        row, x = y[i], xs[i]
        for _ in range(35):
            y = torch.tanh(y + row @ w + x @ w)
        h = h * 0.5 + y.mean(0)
    return h


def of_two_lengths(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros(40, 2, *xs.shape[1:], dtype=xs.dtype) + h
    for t in range(40):
        both = out[t]
        h = torch.tanh(h @ w + xs[t])
        products = both @ h.mT * 0.01
        out[t, t - t + 1] = h
        h = h + torch.tanh((products @ h).sum(0) @ w)
    return out, h


def of_a_row(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros(40, 2, *xs.shape[1:], dtype=xs.dtype)
    k = torch.stack([h, h * 2])
    for t in range(40):
        y = torch.tanh(k @ w + xs[t])
        out[t] = y
        p = y[t - t + 1] @ w
        out[t] = torch.sin(k) * 0.5
        k = k * 0.5 + p * 0.1 + torch.tanh(out.sum(0)) * 0.1
    return out, k


def of_nothing_else(xs: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.zeros_like(xs)
    for t in range(40):
        h = torch.softmax(h, 1)
        out[t] = h
    return out, h


@pytest.mark.parametrize("as_on_gpu", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        an_inner_loop_writes,
        of_what_a_loop_hands_on,
        of_two_lengths,
        of_a_row,
        of_nothing_else,
    ],
)
def test_rows_that_may_not_be_taken_where_they_lie(
    fn: Callable[..., Any], as_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's kernel is given one tensor at least: the lines make sure of that."""
    monkeypatch.setattr(direct, "_is_gpu", lambda device: as_on_gpu)
    xs, h, w = numbers(40, 16, 128), numbers(16, 128), numbers(128, 128) * 0.05
    torch.testing.assert_close(bt.jit("cpu")(fn)(xs, h, w), fn(xs, h, w))
