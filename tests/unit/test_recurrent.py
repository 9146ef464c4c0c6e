"""Recurrent cells, and loops over what unbind gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import babytriton as bt
from babytriton.ops.generators import may_draw


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def last_of_gru(cell, x, h):
    for step in x.unbind(1):
        h = cell(step, h)
    return h


def sum_of_lstm(cell, x, h):
    c, total = h * 2, h * 0
    for i, step in enumerate(torch.unbind(x, dim=-2)):
        h, c = cell(step, (h, c))
        total = total + h * i
    return total, c


def rows_of_rnn(cell, x, h):
    for step, other in zip(x.unbind(1), x.unbind(1)):
        h = cell(step + other, h)
    return h


CELLS: list[tuple[Callable[..., Any], nn.Module]] = [
    (last_of_gru, nn.GRUCell(3, 5)),
    (sum_of_lstm, nn.LSTMCell(3, 5)),
    (rows_of_rnn, nn.RNNCell(3, 5)),
    (rows_of_rnn, nn.RNNCell(3, 5, nonlinearity="relu", bias=False)),
]


@pytest.mark.parametrize(("fn", "cell"), CELLS)
@pytest.mark.parametrize("steps", [3, 40])
def test_cells_in_loops(fn: Callable[..., Any], cell: nn.Module, steps: int) -> None:
    cell = cell.double()
    x, h = numbers(2, steps, 3).double().requires_grad_(), numbers(2, 5).double()
    compiled = bt.jit("cpu")(fn)
    found, wanted = compiled(cell, x, h), fn(cell, x, h)
    torch.testing.assert_close(found, wanted)
    inputs = [x, *cell.parameters()]
    grads = [
        torch.autograd.grad(sum(y.sum() for y in (ys if isinstance(ys, tuple) else (ys,))), inputs)
        for ys in (found, wanted)
    ]
    torch.testing.assert_close(*grads)


def test_a_loop_over_parts_is_run_as_a_loop() -> None:
    cell = nn.GRUCell(3, 5)
    compiled = bt.jit("cpu")(last_of_gru)
    with torch.no_grad():
        lowered = compiled.lower(cell, numbers(2, 40, 3), numbers(2, 5))
    assert "def steps(" in lowered.mod.script()
    assert not lowered.fallbacks


def test_of_many_that_are_written_out_torch_runs_most() -> None:
    cell = nn.GRUCell(3, 5)
    x, h = numbers(2, 9, 3), numbers(2, 5)
    with torch.no_grad():
        compiled = bt.jit("cpu")(last_of_gru).lower(cell, x, h).compile()
        assert [call.name for call in compiled.fallbacks] == ["gru_cell"] * 5
        torch.testing.assert_close(compiled(cell, x, h), last_of_gru(cell, x, h))


def test_parts_are_views() -> None:
    def written(x):
        x = x * 1
        parts = x.unbind(1)
        parts[1].zero_()
        total = x[:, 0] * 0
        for part in parts:
            total = total + part
            x += 1
        return total, parts[0]

    x = numbers(3, 40)
    for one, other in zip(bt.jit("cpu")(written)(x), written(x)):
        torch.testing.assert_close(one, other)


def test_parts_by_keywords() -> None:
    def summed(x):
        total = x[:, 0] * 0
        for i, part in enumerate(torch.unbind(dim=1, input=x)):
            total = total * 0.9 + part * i
        for part in reversed(x.unbind(dim=-1)):
            total[:, 0] -= part[:, 0]
        return total

    x = numbers(3, 40, 4)
    torch.testing.assert_close(bt.jit("cpu")(summed)(x), summed(x))


def test_copies_of_parts_are_no_views() -> None:
    def written(x):
        x = x * 1
        parts = torch.unbind_copy(x, 1)
        total = x[:, 0] * 0
        for part in parts:
            total = total + part
            x += 1
        return total

    x = numbers(3, 40)
    torch.testing.assert_close(bt.jit("cpu")(written)(x), written(x))


def test_which_of_torchs_functions_may_draw() -> None:
    draw_none = (torch.fft.fft, torch.special.i0, torch.Tensor.kthvalue, torch.linalg.eigh)
    assert not any(map(may_draw, draw_none))
    draw = (torch.rand, torch.dropout, torch.Tensor.bernoulli, torch.rrelu, torch.multinomial)
    assert all(map(may_draw, draw))
    assert may_draw(lambda x: x)
    assert may_draw(torch.nn.functional.fractional_max_pool2d)


def test_gradients_of_loops_with_functions_that_torch_runs() -> None:
    def repeated(x):
        for _ in range(40):
            x = torch.special.erfcx(x) * 0.5
        return x

    x = numbers(5).double().requires_grad_()
    assert bt.jit("cpu")(repeated).lower(x).fallbacks
    found, wanted = bt.jit("cpu")(repeated)(x), repeated(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x)
    )


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells_under_autocast(kind: type[nn.Module]) -> None:
    cell = kind(3, 5)
    x, h = numbers(2, 3), numbers(2, 5)

    def step(x, h):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cell(x, (h, h) if isinstance(cell, nn.LSTMCell) else h)

    with torch.no_grad():
        found, wanted = bt.jit("cpu")(step)(x, h), step(x, h)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
