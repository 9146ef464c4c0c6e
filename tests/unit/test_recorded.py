"""What tensors say of how torch records them: `requires_grad`, `is_leaf`, `grad`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import babytriton as bt
from babytriton.diagnostics import CompileError

jit = bt.jit("cpu")

MODES = (contextlib.nullcontext, torch.no_grad, torch.inference_mode)


def leaf(requires_grad: bool = True) -> torch.Tensor:
    return torch.arange(3.0).requires_grad_(requires_grad)


def asks(x: torch.Tensor) -> tuple[Any, ...]:
    y = x * 2
    with torch.no_grad():
        inside = (x.requires_grad, x.is_leaf, (x * 3).requires_grad, (x * 3).is_leaf)
    z = y + 1 if x.requires_grad else y - 1
    return x.requires_grad, x.is_leaf, x.grad is None, y.requires_grad, y.is_leaf, y.grad, inside, z


def same(found: Any, expected: Any) -> None:
    *found, ours = found
    *expected, theirs = expected
    assert found == expected
    torch.testing.assert_close(ours, theirs)
    assert ours.requires_grad == theirs.requires_grad


# Of torch's `grad` of what is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_arguments_in_all_modes() -> None:
    compiled = jit(asks)
    for _ in range(3):  # the later ones by shortcuts
        for x in (leaf(), leaf(False), leaf() * 1, leaf(False) * 1):
            for mode in MODES:
                with mode():
                    same(compiled(x), asks(x))


def test_only_what_asks_has_programs_for_each_answer() -> None:
    compiled = jit(lambda x: x * 2)
    with torch.no_grad():
        for x in (leaf(), leaf(False), leaf() * 1):
            compiled(x)
    assert len(compiled.specializations()) == 1


def test_a_program_depends_on_no_more_than_it_asks() -> None:
    x, y = leaf(), leaf()
    jitted = jit(lambda x, y: x * 2 if x is y else x * 3)
    leaves = jit(lambda x: x * 2 if x.is_leaf else x * 3)
    for _ in range(2):
        for grad in (None, torch.ones(3)):
            x.grad = y.grad = grad
            torch.testing.assert_close(jitted(x, y), x * 3)
            torch.testing.assert_close(jitted(x, x), x * 2)
            torch.testing.assert_close(leaves(x), x * 2)
    assert len(jitted.specializations()) == 2
    assert len(leaves.specializations()) == 1


def test_lists_of_arguments() -> None:
    def without(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x * 2 for x in tensors if x.grad is None and x.is_leaf]

    tensors = [leaf(), leaf(False), leaf() * 1, leaf(False) * 1]
    torch.testing.assert_close(jit(without)(tensors), [x * 2 for x in (*tensors[:2], tensors[3])])


def test_tensors_of_modules_in_all_modes() -> None:
    layer = nn.Linear(3, 3)

    def asks(x: torch.Tensor) -> tuple[Any, ...]:
        w = layer.weight
        y = x @ w if w.requires_grad else x - w
        return w.requires_grad, w.is_leaf, layer.bias.requires_grad, y

    compiled = jit(asks)
    for frozen in (False, True, False):
        layer.weight.requires_grad_(not frozen)
        for mode in MODES:
            with mode():
                same(compiled(torch.ones(3, 3)), asks(torch.ones(3, 3)))


def test_gradients_of_parameters_are_read_and_written() -> None:
    layer = nn.Linear(3, 3)

    @torch.no_grad()
    def step(rate: float) -> int:
        stepped = 0
        for p in layer.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=rate)
                p.grad.mul_(0.5)
                stepped += 1
        return stepped

    compiled = jit(step)
    with torch.no_grad():
        assert compiled(0.1) == 0
    for rate in (0.1, 0.2):
        layer(torch.rand(2, 3)).square().sum().backward()
        before = [(p.detach().clone(), p.grad.clone()) for p in layer.parameters()]
        with torch.no_grad():
            assert compiled(rate) == 2
        for p, (value, grad) in zip(layer.parameters(), before):
            torch.testing.assert_close(p, value - rate * grad)
            torch.testing.assert_close(p.grad, grad / 2)
    layer.zero_grad()
    with torch.no_grad():
        assert compiled(0.1) == 0


def test_an_argument_has_a_gradient_from_some_call_on() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.grad is None else x * 3

    x, compiled = leaf(), jit(asks)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), x * 2)
    x.grad = torch.ones(3)
    with pytest.raises(CompileError, match=r"`x.grad` is not in the language") as raised:
        compiled(x)
    assert "pass it as an argument" in str(raised.value)


def test_a_compiled_program_says_what_it_knows() -> None:
    with torch.no_grad():
        compiled = jit(asks).lower(leaf()).compile()
        same(compiled(leaf()), asks(leaf()))
        with pytest.raises(ValueError, match="another value than compiled for") as raised:
            compiled(leaf(False))
    words = "compiled for a tensor whose requires_grad is True, got a tensor whose requires_grad"
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "asks",
    [lambda x: x.grad_fn, lambda x: (x * 1).grad_fn, lambda x: x._version, lambda x: x._base],
)
def test_what_a_program_has_no_answer_to(asks: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(CompileError, match="BT001"):
        jit(asks)(leaf() * 1)


def test_what_has_no_function_of_its_gradient() -> None:
    def asks(x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return (x.grad_fn, (x * 1).grad_fn, x.detach().grad_fn), x + 1

    same(jit(asks)(leaf(False)), asks(leaf(False)))
