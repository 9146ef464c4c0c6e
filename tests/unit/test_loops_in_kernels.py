"""Loops of elementwise steps, which are one kernel each on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance import gpu
from tests.cuda.functions import returns
from tests.unit.test_gpu_instructions import needs_compiler, positions
from tests.unit.test_gpu_programs import traffic


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def advantages(rewards, values, dones, gamma: float, lam: float):
    found = torch.zeros_like(rewards)
    last = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        last = delta + gamma * lam * alive * last
        found[t] = last
    return found, last


def moving_average(x, a: float):
    out = torch.empty_like(x)
    out[0] = x[0]
    for t in range(1, x.shape[0]):
        out[t] = a * x[t] + (1 - a) * out[t - 1]
    return out


def two_before(x):
    out = x.clone()
    for t in range(2, x.shape[0]):
        out[t] = x[t] - 0.5 * out[t - 1] + 0.25 * out[t - 2]
    return out


def state_space(x, dt, a, b, c):
    h = torch.zeros_like(a)
    ys = torch.empty_like(x)
    for t in range(x.shape[0]):
        h = torch.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        ys[t] = (h * c[t]).sum(-1)
    return ys, h


def state_space_of_batches(x, a, b, c):
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1])
    ys = torch.empty_like(x)
    for t in range(x.shape[1]):
        h = a * h + x[:, t, :, None] * b[:, t, None, :]
        ys[:, t] = (h * c[:, t, None, :]).sum(-1)
    return ys


def down_columns(x):
    out = torch.empty_like(x)
    best = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        best = torch.maximum(best * 0.9, x[:, t])
        out[:, t] = best
    return out


def newton(x):
    y = x * 0.5
    for _ in range(40):
        y = 0.5 * (y + x / y)
    return y


def swapped(x):
    one, other = x, x * 0.5
    for t in range(40):
        one, other = other, 0.3 * one + 0.6 * other + t * 0.01
    return one - other


def in_a_circle(x):
    a, b, c = x, x + 1, x * 2
    for _ in range(37):
        a, b, c = b, c, a
    return a, b, c


def begins_as_one(x):
    one = other = x
    for t in range(34):
        one, other = one * 0.9 + t, other * 0.8 - one
    return one, other


def of_two_shapes(x):
    total = torch.zeros_like(x)
    scale = torch.ones_like(x[0])
    for _ in range(35):
        scale = scale * 0.9
        total = total + x * scale
    return total, scale


def escapes(re, im):
    x, y, count = (
        torch.zeros_like(re),
        torch.zeros_like(re),
        torch.zeros_like(re, dtype=torch.int32),
    )
    for _ in range(40):
        inside = x * x + y * y < 4
        x, y = torch.where(inside, x * x - y * y + re, x), torch.where(inside, 2 * x * y + im, y)
        count = count + inside
    return count


def some_rows(x):
    out = x.clone()
    for t in range(4, 40):
        out[t] = out[t] * 2 + out[t - 4]
    return out


def several_memories(x):
    a, b, c = x.clone(), x + 1, torch.zeros_like(x)
    h, g = x[0], x[1]
    for t in range(1, x.shape[0]):
        h = h * 0.5 + x[t]
        g = g * 0.25 + h
        a[t] = 0.5 * h + 0.25 * a[t - 1]
        b[t] = 0.3 * b[t - 1] + g + a[t]
        c[t] = h * g - b[t - 1]
    return a, b, c, h, g


def apart(x):
    a, b = torch.empty_like(x), torch.empty_like(x)
    h, g = x[0], x[1]
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t]
        a[t] = h
        g = g * 0.5 - x[t]
        b[t] = g
    return a, b


def apart_and_together(x):
    h, g = x[0], x[1]
    both = torch.zeros(len(h), len(g), dtype=x.dtype)
    for t in range(x.shape[0]):
        h, g = h * 0.5 + x[t], g * 0.5 - x[t]
        both = both * 0.9 + h[:, None] * g
    return h, g, both


def takes_what_is_given(x):
    h, last, given = x[0], x[1], x[2]
    for _ in range(40):
        h = h * 0.5 + last
        last = given
    return h, last


def reads_both_versions(x, p):
    m = x[:9, :9].clone()
    w = p[0]
    for t in range(2, 7):
        m[8 - t] = x[t + 1, :9] * 0.5
        before = m[t] * 0.5 + w * 0.4
        m[t] += p[t] * 0.5
        w = torch.where(p[t + 2] > 0.1, m[t - 1] * 1.0, before)
    return m, w


def into_argument(x, out):
    for t in range(33, x.shape[0]):
        out[t] = out[t - 1] * 0.5 + x[t]


def with_list(x):
    h = torch.zeros_like(x[0])
    found = []
    for row in x:
        h = torch.tanh(row + 0.5 * h)
        found.append(h)
    return torch.stack(found)


def sine(x, n: int):
    sin = x.sin()
    y = x
    for _ in range(n):
        y = y * 0.5 + (x * 2).sin() + sin
    return y


def counted(x):
    seen = torch.zeros_like(x[0], dtype=torch.int64)
    for t in range(x.shape[0]):
        seen = torch.where(x[t] > 0, seen + 1, 0 * seen)
    return seen


def outer(x, steps: int):
    total = torch.zeros_like(x[0])
    for _ in range(3):
        y = x[0]
        for _t in range(steps):
            y = y * 0.5 + x[1]
        total = total + y
    return total


def in_branches(x):
    y = x
    if x.sum() > 0:
        for _ in range(40):
            y = y * 0.5 + 1
    else:
        for _ in range(50):
            y = y * 0.25 - x
    return y + x


T, N = 41, 70
ROWS = numbers(T, N)
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = [
    (returns, (ROWS, 0.9), 1),
    (advantages, (ROWS, numbers(T + 1, N), (ROWS > 1).float(), 0.99, 0.95), 1),
    (moving_average, (ROWS, 0.1), 1),
    (two_before, (ROWS,), 1),
    (down_columns, (numbers(N, T),), 1),
    (newton, (ROWS.abs() + 1,), 1),
    (swapped, (ROWS,), 2),
    (in_a_circle, (ROWS,), 1),
    (begins_as_one, (ROWS,), 1),
    (of_two_shapes, (ROWS,), 1),
    (escapes, (ROWS, numbers(T, N) * 0.5), 1),
    (some_rows, (ROWS,), 1),
    (several_memories, (ROWS,), 1),
    (apart, (ROWS,), 1),
    (apart_and_together, (ROWS[:, :9].contiguous(),), 1),
    (takes_what_is_given, (ROWS,), 1),
    (counted, (ROWS,), 1),
    (sine, (ROWS, 50), 1),
    (
        state_space_of_batches,
        (numbers(3, T, 10), -numbers(10, 8).abs(), numbers(3, T, 8), numbers(3, T, 8)),
        1,
    ),
    (state_space, (ROWS, ROWS.abs(), -numbers(N, 16).abs(), numbers(T, 16), numbers(T, 16)), 1),
]


def exact(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What torch gives in float64, from the arguments' own values."""
    return fn(
        *(
            x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for x in arguments
        )
    )


def assert_right(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    for mine, others in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted))):
        torch.testing.assert_close(mine.to(others.dtype), others, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("fn", "arguments", "kernels"), CASES)
def test_a_loop_is_one_kernel(
    fn: Callable[..., Any], arguments: tuple[Any, ...], kernels: int
) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(*arguments).compile()
    assert len(compiled.launches) == kernels
    found = gpu.call(compiled, arguments)
    torch.testing.assert_close(found, fn(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 31, 33, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fn", [moving_average, returns])
def test_dtypes(fn: Callable[..., Any], dtype: torch.dtype, columns: int) -> None:
    arguments = numbers(40, columns, dtype=dtype), 0.25
    compiled = bt.jit(gpu.TARGET)(fn).lower(*arguments).compile()
    assert len(compiled.launches) == 1
    found, wanted = gpu.call(compiled, arguments), fn(*arguments)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted)
    # Each step rounds as torch's does.
    assert (found == wanted).double().mean() > 0.98


OTHERS: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = [
    (with_list, (ROWS,), 1),
    (reads_both_versions, (ROWS, numbers(9, 9)), 99),
    (outer, (ROWS, 40), 2),
    (in_branches, (ROWS,), 5),
]


@pytest.mark.parametrize(("fn", "arguments", "kernels"), OTHERS)
def test_loops_beside_other_work(
    fn: Callable[..., Any], arguments: tuple[Any, ...], kernels: int
) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(*arguments).compile()
    assert len(compiled.launches) <= kernels
    found = gpu.call(compiled, arguments)
    torch.testing.assert_close(found, fn(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [5, 8, 32])
@pytest.mark.parametrize("fn", [returns, moving_average, with_list])
def test_few_steps_that_write_rows(fn: Callable[..., Any], steps: int) -> None:
    arguments = (numbers(steps, 70), *((0.75,) if fn is not with_list else ()))
    compiled = bt.jit(gpu.TARGET)(fn).lower(*arguments).compile()
    assert compiled.source("cuda").count("; ++step) {") == 1
    found = gpu.call(compiled, arguments)
    torch.testing.assert_close(found, fn(*arguments), rtol=1e-4, atol=1e-5)


def few_products(x, w):
    out = torch.empty_like(x)
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        out[t] = h
    return out


def few_decisions(x):
    out = torch.empty_like(x)
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h = h - x[t] if h.sum() > 0 else h + x[t]
        out[t] = h
    return out


@pytest.mark.parametrize("fn", [few_products, few_decisions])
def test_few_steps_of_other_work_are_written_out(fn: Callable[..., Any]) -> None:
    arguments = (numbers(5, 40), *((numbers(40, 40) * 0.1,) if fn is few_products else ()))
    lowered = bt.jit(gpu.TARGET)(fn).lower(*arguments)
    assert "def steps(" not in lowered.mod.script()
    found = gpu.call(lowered.compile(), arguments)
    torch.testing.assert_close(found, fn(*arguments), rtol=1e-4, atol=1e-5)


def copied_twice(x):
    h = torch.zeros_like(x[0])
    found = []
    for row in x:
        h = h * 0.5 + row
        found.append(h)
    rows = torch.stack(found)
    return rows.clone(), h


def copied_and_read(x):
    rows = copied_twice(x)[0]
    return rows.clone(), rows + 1


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("fn", [copied_twice, copied_and_read])
def test_copies_of_what_nothing_else_reads(fn: Callable[..., Any], device: str) -> None:
    x = numbers(40, 33)
    compiled = bt.jit(gpu.TARGET if device == "gpu" else "cpu")(fn).lower(x).compile()
    found = gpu.call(compiled, (x,)) if device == "gpu" else compiled(x)
    torch.testing.assert_close(found, fn(x))
    assert found[0].data_ptr() != found[1].data_ptr()
    if device == "gpu":
        assert len(compiled.launches) == (1 if fn is copied_twice else 2)


def test_rows_of_an_argument() -> None:
    x, out = numbers(80, 33), numbers(80, 33)
    wanted = out.clone()
    into_argument(x, wanted)
    compiled = bt.jit(gpu.TARGET)(into_argument).lower(x, out).compile()
    assert "in place" in compiled.source("cuda")
    gpu.call(compiled, (x, out))
    torch.testing.assert_close(out, wanted)


def two_arguments(x, o, p):
    h = x[2].clone()
    for t in range(2, 38):
        h = h * 0.5 + p[t] * 0.4
        o[t] += x[2] * 0.5 - h * 0.3
        p[t] += p[t] * 0.5 + o[t] * 0.4


def test_rows_of_several_arguments() -> None:
    arguments = numbers(40, 33), numbers(40, 33) + 1, numbers(40, 33) - 1
    wanted = tuple(x.clone() for x in arguments)
    two_arguments(*wanted)
    compiled = bt.jit(gpu.TARGET)(two_arguments).lower(*arguments).compile()
    assert compiled.source("cuda").count("in place") == 2
    gpu.call(compiled, arguments)
    torch.testing.assert_close(arguments, wanted)


def reads_what_it_writes(x):
    """Of the argument that it writes to, a step reads rows that others have written."""
    before = x * 2
    for t in range(39):
        x[t + 1] = x[t] + before[t]


def reads_what_others_write(x):
    """Of it, a thread begins with what is another one's."""
    last = x[0].flip(0) * 2
    for t in range(1, 40):
        last = last * 0.5 + t
        x[t] = last


@pytest.mark.parametrize("fn", [reads_what_it_writes, reads_what_others_write])
def test_arguments_that_are_read_elsewhere_are_not_written_too_early(
    fn: Callable[..., Any],
) -> None:
    x, wanted = numbers(40, 33), numbers(40, 33)
    fn(wanted)
    gpu.call(bt.jit(gpu.TARGET)(fn).lower(x).compile(), (x,))
    torch.testing.assert_close(x, wanted)


SYMBOLIC = bt.Tensor[("steps", "columns"), "float32"]
OF_COLUMNS = bt.Tensor[("columns", 4), "float32"]
OF_STEPS = bt.Tensor[("steps", 4), "float32"]


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (returns, (SYMBOLIC, 0.5)),
        (moving_average, (SYMBOLIC, 0.5)),
        (state_space, (SYMBOLIC, SYMBOLIC, OF_COLUMNS, OF_STEPS, OF_STEPS)),
    ],
)
def test_sizes_that_a_call_tells(fn: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
    compiled = bt.jit(gpu.TARGET)(fn).lower(*kinds).compile()
    assert len(compiled.launches) == 1
    for steps, columns in ((2, 33), (3, 2), (70, 100)):
        shapes = {SYMBOLIC: (steps, columns), OF_COLUMNS: (columns, 4), OF_STEPS: (steps, 4)}
        given = tuple(numbers(*shapes[x]) if x in shapes else x for x in kinds)
        found = gpu.call(compiled, given)
        torch.testing.assert_close(found, fn(*given), rtol=1e-4, atol=1e-5)


def test_gradients_go_through_such_kernels() -> None:
    x = numbers(40, 33).requires_grad_()
    compiled = bt.jit(gpu.TARGET)(with_list).lower(x).compile()
    grad = numbers(40, 33) + 1
    [found] = gpu.gradients(compiled, (x,), {0: grad})
    [wanted] = torch.autograd.grad(with_list(x), x, grad)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fn", [returns, moving_average])
def test_each_row_is_read_and_written_once(fn: Callable[..., Any]) -> None:
    x = numbers(100, 256)
    reads, writes = traffic(fn, x, 0.5)
    [read] = reads.keys() - {""}
    assert reads[read] <= x.numel() + x.shape[1]  # a first row, where there is one, also as a state
    assert writes[fn.__name__] == x.numel()


@needs_compiler
@pytest.mark.parametrize("size", [4, 16, 32])
def test_states_are_in_registers(size: int) -> None:
    rows, of_columns, of_steps = numbers(64, 128), numbers(128, size), numbers(64, size)
    arguments = rows, rows.abs(), -of_columns.abs(), of_steps, of_steps
    compiled = bt.jit(bt.Target("cuda", arch="sm_90"))(state_space).lower(*arguments).compile()
    [launch] = compiled.launches
    assert launch.registers is not None
    assert launch.registers <= 128
    assert launch.spilled == 0
    # Local memory is where arrays go that are not in registers.
    assert not re.search(r"\b(LDL|STL)\b", compiled.source("sass"))


@needs_compiler
def test_rows_are_on_their_way_together() -> None:
    compiled = bt.jit(bt.Target("cuda", arch="sm_90"))(returns).lower(numbers(1000, 256), 0.5)
    sass = compiled.compile().source("sass")
    loads, stores = positions(sass, "LDG"), positions(sass, "STG")
    assert sum(load < stores[0] for load in loads) >= 4
