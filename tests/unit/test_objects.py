"""Arguments that are functions, modules, or objects of classes."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt

X = torch.linspace(-1.0, 2.0, 5)


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    activation: str = "relu"
    steps: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float = 0.1
    activation: str = "relu"
    steps: int = 2


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def activated(x, activation=torch.relu):
    return activation(x) + 1


DEFAULT = Config()


def configured(x, config=DEFAULT):
    y = getattr(F, config.activation)(x)
    for _ in range(config.steps):
        y = y * config.rate
    return y


def checked(jitted, *args: Any) -> None:
    torch.testing.assert_close(jitted(*args), jitted.fn(*args))


@pytest.mark.parametrize(
    "activation",
    [torch.tanh, F.gelu, lambda x: x * 3, functools.partial(torch.clamp, min=0.5), Scale(4.0)],
)
def test_functions(activation: Any) -> None:
    jitted = bt.jit("cpu")(activated)
    for _ in range(3):
        checked(jitted, X)
        checked(jitted, X, activation)
    assert len(jitted.specializations()) == 2


def test_functions_of_one_code_are_one() -> None:
    jitted = bt.jit("cpu")(activated)
    for _ in range(4):
        checked(jitted, X, lambda x: x * 7)
    assert len(jitted.specializations()) == 1
    for by in (1.0, 2.0):
        checked(jitted, X, lambda x, by=by: x * by)
        checked(jitted, X, lambda x: x * by)  # noqa: B023


@pytest.mark.parametrize("kind", [Config, Frozen])
def test_configurations(kind: Any) -> None:
    jitted = bt.jit("cpu")(configured)
    for _ in range(4):
        checked(jitted, X)
        checked(jitted, X, kind(0.5, "gelu", 3))
    assert len(jitted.specializations()) == 2
    checked(jitted, X, kind(0.25, "gelu", 3))
    assert len(jitted.specializations()) == 3


def test_what_changes_in_an_object_is_seen() -> None:
    jitted, config = bt.jit("cpu")(configured), Config()
    for _ in range(2):
        checked(jitted, X, Config())
        checked(jitted, X, config)
    for rate in (3.0, 4.0):
        config.rate = rate
        for _ in range(3):
            checked(jitted, X, config)
            checked(jitted, X, Config())
    scale = Scale(2.0)
    applied = bt.jit("cpu")(activated)
    for by in (2.0, 3.0):
        scale.by = by
        for _ in range(3):
            checked(applied, X, scale)


def test_enumerations_and_ranges() -> None:
    jitted = bt.jit("cpu")(lambda x, mode: x * 2 if mode is Mode.DOUBLE else x * 3)
    for mode in (Mode.DOUBLE, Mode.TRIPLE) * 2:
        checked(jitted, X, mode)
    assert len(jitted.specializations()) == 2
    checked(bt.jit("cpu")(lambda x, places: sum(x[i] for i in places)), X, range(1, 4))


def test_modules_and_their_gradients() -> None:
    jitted = bt.jit("cpu")(lambda module, x: module(x).sum())
    modules = torch.nn.Linear(5, 3), torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.ReLU())
    for _ in range(3):
        for module in modules:
            parameters = list(module.parameters())
            checked(jitted, module, X)
            ours = torch.autograd.grad(jitted(module, X), parameters)
            torch.testing.assert_close(ours, torch.autograd.grad(module(X).sum(), parameters))
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(0.1)
    assert len(jitted.specializations()) == 2


def test_in_lists_and_dicts() -> None:
    def chained(x, functions, named):
        for function in functions:
            x = function(x)
        return named["last"](x)

    jitted = bt.jit("cpu")(chained)
    checked(jitted, X, [torch.sin, torch.cos], {"last": torch.exp})
    checked(jitted, X, [torch.cos, torch.sin], {"last": torch.exp})
    assert len(jitted.specializations()) == 2


def test_stages_name_them() -> None:
    compiled = bt.jit("cpu")(configured).lower(X, Config()).compile()
    torch.testing.assert_close(compiled(X, Config()), configured(X))
    with pytest.raises(ValueError, match=r"(?s)BT107.*`config`.*rate=0.1.*rate=0.7"):
        compiled(X, Config(0.7))


@pytest.mark.parametrize("value", [(i for i in range(3)), iter([1]), {1, 2}, object()])
def test_others_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"BT101.*`value`"):
        bt.jit("cpu")(lambda x, value: x)(X, value)


def test_kernels_take_none() -> None:
    @bt.kernel("cpu")
    def fill(x, config):
        for i in range(len(x)):
            x[i] = config.rate

    with pytest.raises(TypeError, match=r"BT101.*`config`"):
        fill(torch.zeros(3), Config())
