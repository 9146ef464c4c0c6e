"""Calls after the first, which take a shorter way, give what the first one's way gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.runtime import direct

FACTOR = 2.0


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 8), torch.randn(8, 8)


def warm(fn: Any, *arguments: Any) -> Any:
    """A compiled function that has a shortcut for calls like this one."""
    compiled = bt.jit("cpu")(fn)
    compiled(*arguments)
    assert compiled._shortcuts
    return compiled


def test_other_numbers(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    compiled = warm(add, a, b)
    assert torch.equal(compiled(b, b), b + b)
    assert torch.equal(compiled(a, a), a + a)
    assert len(compiled.specializations()) == 1


def test_each_call_has_memory_of_its_own(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    compiled = warm(add, *pair)
    first = compiled(*pair)
    kept = first.clone()
    compiled(pair[1], pair[1])
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.t(),
        lambda x: x[::2].repeat(2, 1)[:, :],
        lambda x: torch.cat([x, x])[1:9],
        lambda x: torch.randn(65)[1:].view(8, 8),
        lambda x: torch.randn(16, 16)[::2, ::2],
        lambda x: x.double(),
        lambda x: x.half(),
        lambda x: x[:1],
        lambda x: x[:, :1],
        lambda x: torch.randn(()),
        lambda x: torch._neg_view(x),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
    ],
)
def test_other_tensors(other: Any, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    compiled = warm(add, a, b)
    for _ in range(2):
        moved = other(b)
        torch.testing.assert_close(compiled(moved, b), moved + b)
        torch.testing.assert_close(compiled(a, moved), a + moved)
        torch.testing.assert_close(compiled(a, b), a + b)


def test_refusals_stay(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    compiled = warm(add, a, b)
    assert compiled(a.clone().requires_grad_(), b).requires_grad
    with torch.autocast("cpu"):
        assert torch.equal(compiled(a, b), a + b)
    assert len(compiled.specializations()) == 3
    with pytest.raises(TypeError, match="BT108"):
        compiled(a)
    with pytest.raises(TypeError, match="BT108"):
        compiled(a, b, b)
    with pytest.raises(ValueError, match="meta"):
        compiled(a.to("meta"), b)
    with torch.no_grad():
        assert torch.equal(compiled(a.clone().requires_grad_(), b), a + b)
    with torch.inference_mode():
        assert torch.equal(compiled(a * 1, b), a + b)
    assert torch.equal(compiled(b=b, a=a), a + b)


def test_floats_vary_and_other_values_do_not(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    def scaled(x: torch.Tensor, factor: float, power: int, flag: bool | None) -> torch.Tensor:
        return x * factor + power if flag else x * power

    a, _ = pair
    compiled = warm(scaled, a, 2.0, 1, True)
    for factor in (0.5, -0.0, float("inf"), float("nan"), 3):
        for power in (1, 2, True, 1.0):
            for flag in (True, False, None, 1):
                found = compiled(a, factor, power, flag)
                expected = scaled(a, factor, power, flag)
                torch.testing.assert_close(found, expected, equal_nan=True)


def test_defaults(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    def moved(x: torch.Tensor, by: int = 1, factor: float = 2.0) -> torch.Tensor:
        return x * factor + by

    def turned(x: torch.Tensor, dim: int = 0, flip: bool = False) -> torch.Tensor:
        return x.softmax(dim) if flip else x.cumsum(dim)

    a, b = pair
    compiled = warm(turned, a)
    for x in pair:
        assert torch.equal(compiled(x), turned(x))
        torch.testing.assert_close(compiled(x, 1), turned(x, 1))
        torch.testing.assert_close(compiled(x, 1, True), turned(x, 1, True))
    by_float = warm(moved, a)
    for x in (a, b, a):
        torch.testing.assert_close(by_float(x), moved(x))
        torch.testing.assert_close(by_float(x, 3), moved(x, 3))
        torch.testing.assert_close(by_float(x, 3, 0.5), moved(x, 3, 0.5))


def test_static_floats_stay_constants(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    @bt.jit("cpu", static_argnames="factor")
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    for factor in (2.0, 3.0, 2.0):
        assert torch.equal(scaled(pair[0], factor), pair[0] * factor)
    assert len(scaled.specializations()) == 2


def test_a_global_that_changes(
    pair: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR

    compiled = warm(scaled, pair[0])
    assert torch.equal(compiled(pair[0]), pair[0] * 2.0)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.equal(compiled(pair[0]), pair[0] * 5.0)


def test_the_default_dtype() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    x = torch.arange(8)
    compiled = warm(half, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert compiled(x).dtype == torch.float32


def test_a_row_that_is_added_later(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    compiled = warm(sine, pair[0])
    compiled.register(torch.sin, decompose=lambda x: x + 1)
    assert torch.equal(compiled(pair[0]), pair[0] + 1)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: {"sum": x + y, "same": x, "n": 3},
        lambda x, y: [x.softmax(-1), y.sum(), (y > 0,)],
        lambda x, y: y - x,
        lambda x, y: y * 2,
        lambda x, y: (y * x,),
        lambda x, y: (x > y).to(torch.bool),
        lambda x, y: x.sum(),
    ],
)
def test_results_of_all_kinds(fn: Any, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    compiled = warm(fn, *pair)
    for arguments in (pair, pair[::-1]):
        found, expected = compiled(*arguments), fn(*arguments)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)


def test_writes_and_captured_tensors_take_the_long_way(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    weight = pair[1].clone()

    @bt.jit("cpu")
    def captured(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    @bt.jit("cpu")
    def written(x: torch.Tensor) -> None:
        x.add_(1)

    a = pair[0].clone()
    for step in (1, 2, 3):
        written(a)
        torch.testing.assert_close(a, pair[0] + step)
        weight += 1
        torch.testing.assert_close(captured(a), a * weight)


def test_torch_func(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    compiled = warm(add, a, b)
    for _ in range(3):
        for dims in ((0, 0), (0, None)):
            batched = torch.vmap(compiled, dims)
            torch.testing.assert_close(batched(a, b), torch.vmap(add, dims)(a, b))
        row = torch.vmap(compiled)(torch.stack(pair), torch.stack(pair))
        torch.testing.assert_close(row, torch.stack(pair) * 2)
        grad = torch.func.grad(lambda x: compiled(x, b).square().sum())(a)
        torch.testing.assert_close(grad, 2 * (a + b))


def test_many_shapes() -> None:
    compiled = bt.jit("cpu", dynamic=False)(add)
    for _ in range(3):
        for n in range(1, 9):
            x = torch.randn(n, 3)
            assert torch.equal(compiled(x, x), x + x)
    assert len(compiled.specializations()) == 8


def test_large_results_are_made_by_the_virtual_machine() -> None:
    x = torch.randn(direct.LARGE // 4)
    compiled = warm(lambda x: x + 1, x)
    assert torch.equal(compiled(x), x + 1)


def test_parameters_without_gradients() -> None:
    weight = torch.nn.Parameter(torch.randn(8))
    other = torch.nn.Parameter(torch.randn(8))
    x = torch.randn(2, 8)
    with torch.no_grad():
        compiled = warm(add, x, weight)
        assert torch.equal(compiled(x, other), x + other)
    result = compiled(x, other)
    result.sum().backward()
    assert torch.equal(other.grad, torch.full((8,), 2.0))
    with torch.no_grad():
        assert not compiled(x, weight).requires_grad
    with torch.inference_mode():
        assert torch.equal(compiled(x, weight), x + weight)


# ---------------------------------------------------------------- symbolic sizes


def scored(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-3) -> torch.Tensor:
    return torch.softmax(x * w + eps, -1)


def warm_for_all_sizes(fn: Any, *arguments: Any) -> Any:
    compiled = bt.jit("cpu", dynamic=True)(fn)
    compiled(*arguments)
    assert compiled._shortcuts
    return compiled


def test_any_size() -> None:
    compiled = warm_for_all_sizes(scored, torch.randn(4, 6), torch.randn(6))
    shortcuts = compiled._shortcuts
    for rows, columns in ((4, 6), (2, 2), (300, 7), (7, 1000), (5, 300000)):
        x, w = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(compiled(x, w), scored(x, w))
        torch.testing.assert_close(compiled(x, w), scored(x, w))
    assert compiled._shortcuts == shortcuts
    assert len(compiled.specializations()) == 1


def test_sizes_that_do_not_go_together() -> None:
    compiled = warm_for_all_sizes(scored, torch.randn(4, 6), torch.randn(6))
    for x, w in (
        (torch.randn(4, 1), torch.randn(6)),
        (torch.randn(4, 6), torch.randn(1)),
        (torch.randn(1, 6), torch.randn(6)),
        (torch.randn(0, 6), torch.randn(6)),
        (torch.randn(2, 4, 6), torch.randn(6)),
        (torch.randn(6, 4).t(), torch.randn(6)),
        (torch.randn(4, 12)[:, ::2], torch.randn(12)[::2]),
        (torch.randn(4, 6).double(), torch.randn(6)),
    ):
        torch.testing.assert_close(compiled(x, w), scored(x, w))
    for x, w in ((torch.randn(4, 6), torch.randn(5)), (torch.randn(6), torch.randn(4))):
        with pytest.raises(bt.CompileError, match="BT003"):
            compiled(x, w)


def test_conditions_on_sizes() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 10:
            return x * 2
        return x[: x.shape[0] // 2] + 1

    compiled = bt.jit("cpu", dynamic=True)(halves)
    for rows in (4, 20, 6, 30, 5, 11, 10, 2):
        x = torch.randn(rows, 3)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), halves(x))
    assert compiled._shortcuts


def test_sizes_as_results() -> None:
    def described(x: torch.Tensor) -> Any:
        return x * 2, x.shape[0], x.shape[0] / 3

    compiled = bt.jit("cpu", dynamic=True)(described)
    for rows in (4, 9, 5):
        x = torch.randn(rows, 3)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), described(x))


def test_large_results_of_any_size() -> None:
    compiled = warm_for_all_sizes(add, torch.randn(3, 4), torch.randn(3, 4))
    for rows in (5, 2048):
        x = torch.randn(rows, direct.LARGE // 4 // 2048)
        assert torch.equal(compiled(x, x), x + x)


def test_torchs_calls_with_any_size() -> None:
    def ordered(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x * 2, -1)[0] + 1

    compiled = warm_for_all_sizes(ordered, torch.randn(3, 4))
    for shape in ((3, 4), (5, 9), (2, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), ordered(x))


def test_a_tensor_may_be_there_twice() -> None:
    def fn(a, b, c):
        return a * b - c

    x, y, z = (torch.arange(12.0).view(3, 4) * n for n in (1, 2, 3))
    for dynamic in (False, True):
        compiled = bt.jit("cpu", dynamic=dynamic)(fn)
        for args in ((x, x, x), (x, y, x), (x, y, z), (y, y, z)):
            for _ in range(2):
                torch.testing.assert_close(compiled(*args), fn(*args))
            _, _, admits, run = compiled._shortcuts[0]
            assert admits(*args)
            torch.testing.assert_close(run(*args), fn(*args))
        assert len(compiled.specializations()) == 1


def test_numbers_that_are_computed_from_sizes() -> None:
    def fn(x, y):
        return torch.cat([x, y], 0).diff(dim=-1), x.shape[0] + y.shape[0]

    def first(x):
        return torch.cat([x, x * 2], 0)

    compiled, one = bt.jit("cpu", dynamic=True)(fn), bt.jit("cpu", dynamic=True)(first)
    for m, n, k in ((2, 3, 4), (5, 2, 7), (40, 30, 20)):
        x, y = torch.randn(m, k), torch.randn(n, k)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, y), fn(x, y))
            torch.testing.assert_close(one(x), first(x))
    assert len(compiled._shortcuts) == len(one._shortcuts) == 1
