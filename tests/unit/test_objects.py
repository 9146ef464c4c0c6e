"""Arguments that are functions, modules, or objects of classes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
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

    def apply(self, x: torch.Tensor) -> torch.Tensor:
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


def test_each_function_has_a_program() -> None:
    jitted = bt.jit("cpu")(activated)
    for by in (1.0, 2.0):
        checked(jitted, X, lambda x, by=by: x * by)
        checked(jitted, X, lambda x: x * by)  # noqa: B023
    first, second = (types.FunctionType(named.__code__, globals(), name) for name in ("a", "b"))
    by_name = bt.jit("cpu")(lambda x, fn: x if fn.__name__ == "a" or fn is second else fn(x))
    for fn in (first, second, named) * 2:
        checked(by_name, X, fn)


def named(x):
    return x * 7


def test_code_that_is_replaced_is_seen() -> None:
    def five(x):
        return x * 5

    jitted = bt.jit("cpu")(activated)
    for _ in range(3):
        checked(jitted, X, five)
    compiled = jitted.lower(X, five).compile()
    five.__code__ = (lambda x: x * 6).__code__
    for _ in range(2):
        checked(jitted, X, five)
    with pytest.raises(ValueError, match=r"BT112.*`activation.__code__`"):
        compiled(X, five)


def test_methods_are_those_of_their_object() -> None:
    jitted, scales = bt.jit("cpu")(activated), [Scale(2.0), Scale(3.0)]
    for _ in range(4):
        for scale in scales:
            checked(jitted, X, scale.apply)
    assert len(jitted.specializations()) == 2


@pytest.mark.parametrize("kind", [Config, Frozen])
def test_each_configuration_has_a_program(kind: Any) -> None:
    jitted, config, other = bt.jit("cpu")(configured), kind(0.5, "gelu", 3), kind(0.5, "gelu", 3)
    for _ in range(4):
        checked(jitted, X)
        checked(jitted, X, config)
    assert len(jitted.specializations()) == 2
    which = bt.jit("cpu")(lambda x, c: x if c is other else x * 2)
    for each in (config, other) * 2:
        checked(which, X, each)


def test_many_objects_are_told(caplog: pytest.LogCaptureFixture) -> None:
    jitted = bt.jit("cpu")(configured)
    for _ in range(9):
        checked(jitted, X, Config())
    assert "another object at each call" in caplog.text


def test_a_default_that_changes_is_seen() -> None:
    default = Config()

    def own(x, config=default):
        return x * config.rate

    jitted = bt.jit("cpu")(own)
    checked(jitted, X, Config())
    for rate in (0.1, 7.0):
        default.rate = rate
        for _ in range(4):
            checked(jitted, X)


class Items:
    def __init__(self, items: list[float]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def test_what_is_gone_through_is_watched() -> None:
    def multiplied(x, items):
        for item in items:
            x = x * item
        return x

    jitted, items = bt.jit("cpu")(multiplied), Items([2.0])
    for _ in range(3):
        checked(jitted, X, items)
    items.items = [3.0]
    checked(jitted, X, items)


class Floats(float, enum.Enum):
    ONE = 1.5
    TWO = 2.5


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
    floats = bt.jit("cpu")(lambda x, e: x if e is Floats.ONE else x * (3 if e == Floats.TWO else 4))
    for each in (Floats.ONE, Floats.TWO) * 2:
        checked(floats, X, each)
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
    config = Config()
    compiled = bt.jit("cpu")(configured).lower(X, config).compile()
    torch.testing.assert_close(compiled(X, config), configured(X))
    with pytest.raises(ValueError, match=r"(?s)BT107.*`config`.*a Config, got another one"):
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


class Strict:
    """Compares with its own kind alone, and has no other name than those it was given."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __eq__(self, other: Any) -> bool:
        return self.by == other.by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Answers:
    """Has an answer to any name."""

    def __getattr__(self, name: str) -> int:
        return 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.anything


@pytest.mark.parametrize("owner", [Strict(2.0), Answers()])
def test_objects_that_are_asked_for_what_their_classes_say_alone(owner: Any) -> None:
    checked(bt.jit("cpu")(lambda x, owner: owner(x) + 1), X, owner)
    checked(bt.jit("cpu")(lambda x: owner(x) + 1), X)


def test_what_a_metaclass_says_is_not_what_its_class_says() -> None:
    class Meta(type):
        @property
        def by(cls) -> int:
            return 5

    class Scaled(metaclass=Meta):
        @property
        def by(self) -> int:
            return 2

    owner = Scaled()
    jitted = bt.jit("cpu")(lambda x: x * owner.by)
    for _ in range(3):
        checked(jitted, X)
    assert len(jitted.specializations()) == 1


def test_what_classes_say_is_watched() -> None:
    class Scaled:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        @property
        def by(self) -> int:
            return 2

    class Below(Scaled):
        pass

    for owner in (Scaled(), Below()):
        jitted = bt.jit("cpu")(lambda x: owner(x) - owner.by)  # noqa: B023  # as it is now
        checked(jitted, X)
        type(owner).by = property(lambda self: 3)
        checked(jitted, X)
        type(owner).__call__ = lambda self, x: x / self.by
        checked(jitted, X)


class Named(dict[str, Any]):
    """A dict whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def total(self) -> Any:
        return self.a + self["b"]


class Output(collections.OrderedDict[str, Any]):
    """A dict whose items are set as attributes as well; of the fields, those that were given."""

    def __init__(self, loss: Any = None, logits: Any = None) -> None:
        super().__init__()
        self.loss, self.logits = loss, logits
        for name, value in (("loss", loss), ("logits", logits)):
            if value is not None:
                self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        setattr(self, name, value)


class Looked(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Tagged(dict[str, Any]):
    def __new__(cls, tag: str) -> Tagged:
        return super().__new__(cls)

    def __init__(self, tag: str) -> None:
        super().__init__(x=X)


class Upper(dict[str, Any]):
    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name.upper(), value)


def test_dicts_of_classes() -> None:
    def named(given, other):
        both = given.total() + given.inner.c + other["x"]
        ordered = collections.OrderedDict(z=both, a=given.a * 2)
        return Named(both=both, given=given), ordered, type(given) is Named, [ordered]

    jitted = bt.jit("cpu")(named)
    for i in range(4):  # the later ones by shortcuts
        given = Named(a=X + i, b=X * i, inner=Named(c=2))
        args = given, Tagged("of an argument of its own")
        found, expected = jitted(*args), named(*args)
        torch.testing.assert_close(found, expected)
        assert [type(item) for item in found] == [type(item) for item in expected]
        assert type(found[0].given) is Named
        assert list(found[1]) == ["z", "a"]
    assert len(jitted.specializations()) == 1
    checked(jitted, Named(a=X, b=X, inner=Named(c=3)), {"x": X})
    assert len(jitted.specializations()) == 2


def test_dicts_whose_items_are_attributes() -> None:
    def doubled(given):
        loss = None if given.loss is None else given.loss * 3
        return Output(loss, given.logits * 2), given.loss is None, given

    jitted = bt.jit("cpu")(doubled)
    for loss in (None, None, None, X, X):
        given = Output(loss, X + 1)
        (found, *others), (expected, *theirs) = jitted(given), doubled(given)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(vars(found), vars(expected))
        assert [type(item) for item in (found, *others)] == [Output, bool, Output]
        assert others[0] == theirs[0]
    assert len(jitted.specializations()) == 2


@pytest.mark.parametrize("make", [Looked, Tagged, Upper])
def test_dicts_of_classes_that_have_their_own_ways(make: Any) -> None:
    given = Tagged("x") if make is Tagged else make(x=X)
    jitted = bt.jit("cpu")(lambda given: (given["x"] + 1, given))
    for _ in range(3):
        found, whole = jitted(given)
        torch.testing.assert_close(found, X + 1)
        assert type(whole) is type(given)
        assert list(whole) == ["x"]


def test_what_dicts_hold_besides_their_items() -> None:
    given = Named(x=X)
    vars(given)["rate"] = 2.0
    torch.testing.assert_close(bt.jit("cpu")(lambda given: given["x"] * 2)(given), X * 2)
    with pytest.raises(bt.CompileError, match="a dict has no attribute `rate`"):
        bt.jit("cpu")(lambda given: given["x"] * given.rate)(given)

    class Plain(dict):
        pass

    config = Plain(n=None, flag=True)
    config.rate, config.flagged, config.shift, config.none = 2.5, True, X, None

    def configured(x):
        y = x * config.rate if config.flagged else x
        return y + config.shift if config.none is None else y

    jitted = bt.jit("cpu")(configured)
    checked(jitted, X)
    for name, value in (("rate", 4.5), ("shift", X * 7), ("flagged", False), ("none", 3)):
        setattr(config, name, value)
        checked(jitted, X)


def test_dicts_of_classes_from_outside() -> None:
    config = Named(rate=2.0, act=torch.sin, w=X * 3)
    jitted = bt.jit("cpu")(lambda x: config.act(x) * config.rate + config.w)
    checked(jitted, X)
    config["rate"], config["w"] = 3.0, X * 4
    checked(jitted, X)
    config["act"] = torch.cos
    checked(jitted, X)


def test_layouts_and_memory_formats() -> None:
    def laid_out(x, memory_format):
        return x.contiguous(memory_format=memory_format), x.layout, memory_format

    x = torch.rand(2, 3, 4, 5)
    for memory_format in (torch.channels_last, torch.contiguous_format):
        found, expected = (f(x, memory_format) for f in (bt.jit("cpu")(laid_out), laid_out))
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:]
