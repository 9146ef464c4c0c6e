"""What a function takes from outside is watched: a call after a change computes what torch does."""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import enum
import gc
import itertools
import math
import os
import threading
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import babytriton as bt

X = torch.linspace(-1.0, 1.0, 5)


def checked(jitted, *args):
    """The result, which is what plain Python gives."""
    found, expected = jitted(*args), jitted.fn(*args)
    torch.testing.assert_close(found, expected)
    return found


def compiled_again(jitted) -> int:
    return len(jitted.specializations())


act = torch.sin
namespace = math
held = {"f": F.gelu}


def test_functions_of_torch_are_watched(monkeypatch) -> None:
    @bt.jit("cpu")
    def of_global(x):
        return act(x)

    @bt.jit("cpu")
    def of_item(x):
        return held["f"](x)

    @bt.jit("cpu")
    def of_alias(x):
        return x * namespace.sqrt(4.0)

    for jitted in (of_global, of_item, of_alias):
        checked(jitted, X)
    monkeypatch.setitem(globals(), "act", torch.cos)
    monkeypatch.setitem(held, "f", torch.relu)
    monkeypatch.setitem(globals(), "namespace", types.SimpleNamespace(sqrt=lambda v: v))
    for jitted in (of_global, of_item, of_alias):
        checked(jitted, X)
    monkeypatch.setitem(globals(), "act", lambda x: x * 3)
    checked(of_global, X)


class Activated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = torch.relu
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        y = self.act(self.linear(x))
        if hasattr(self, "adapter"):
            y = y + self.adapter(x)
        return y * getattr(self, "scale", 1.0)


@torch.no_grad()
def test_attributes_of_modules_are_watched_there_or_not() -> None:
    module = Activated()
    jitted = bt.jit("cpu")(module)

    def check() -> None:
        torch.testing.assert_close(jitted(X), module(X))

    check()
    module.act = torch.tanh
    check()
    module.adapter = nn.Linear(5, 5)
    check()
    module.scale = 5.0
    check()
    del module.adapter, module.scale
    check()


def test_a_builtin_that_is_shadowed_later(monkeypatch) -> None:
    @bt.jit("cpu")
    def total(x):
        return sum([x, x])

    checked(total, X)
    monkeypatch.setitem(globals(), "sum", lambda xs: xs[0] * 100)
    checked(total, X)
    monkeypatch.delitem(globals(), "sum")
    checked(total, X)


class Tenfold(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 10


class Pair(list):
    def __iter__(self):
        return iter([1.0, 2.0])


counts = collections.Counter("aab")
tenfold = Tenfold(a=1.0)
ordered = collections.OrderedDict(b=2.0, a=X)
default = collections.defaultdict(float, a=3.0)
pair = Pair([4.0])


def test_containers_with_ways_of_their_own() -> None:
    @bt.jit("cpu")
    def scaled(x):
        return x * counts["a"], x * tenfold["a"], x * ordered["a"] + ordered["b"], x * default["a"]

    @bt.jit("cpu")
    def product(x):
        for factor in pair:
            x = x * factor
        return x

    checked(scaled, X)
    checked(product, X)
    counts.update("a")
    dict.__setitem__(tenfold, "a", 2.0)
    default["a"] = 5.0
    checked(scaled, X)


@dataclasses.dataclass
class Config:
    k: float = 1.0
    rates: list = dataclasses.field(default_factory=lambda: [1.0, 2.0])


class Slotted:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1.0

    def __float__(self) -> float:
        return self.k


class Schedule:
    k = 1.0

    def __float__(self) -> float:
        return self.k

    def __len__(self) -> int:
        return int(self.k)

    def __bool__(self) -> bool:
        return self.k > 2

    def __mul__(self, other):
        return self.k * other

    def __iter__(self):
        return iter([self.k])

    def __eq__(self, other) -> bool:
        return self.k == other

    __hash__ = None


config, schedule, slotted = Config(), Schedule(), Slotted()
array = np.ones(5, dtype=np.float32)

WHOLE = {
    "vars": lambda x: x * vars(config)["k"],
    "asdict": lambda x: x * dataclasses.asdict(config)["k"],
    "replace": lambda x: x * dataclasses.replace(config).k,
    "copy": lambda x: x * copy.copy(config).k,
    "equal": lambda x: x * 2 if config == Config(1.0) else x,
    "text": lambda x: x * len(f"{config}"),
    "nested": lambda x: x * len(str(config)),
    "tensor": lambda x: x * torch.tensor(array),
    "as_tensor": lambda x: x + torch.as_tensor(array),
    "mean": lambda x: x * float(np.mean(array)),
    "float": lambda x: x * float(schedule),
    "len": lambda x: x * len(schedule),
    "truth": lambda x: x * 2 if schedule else x,
    "times": lambda x: x * (schedule * 2),
    "iterate": lambda x: x * sum(schedule),
    "compare": lambda x: x * 2 if schedule == 1.0 else x,
    "slots": lambda x: x * float(slotted),
}


@pytest.mark.parametrize("name", WHOLE)
def test_objects_that_python_looks_at_are_watched(name, monkeypatch) -> None:
    jitted = bt.jit("cpu")(WHOLE[name])
    checked(jitted, X)
    checked(jitted, X)
    assert compiled_again(jitted) == 1
    monkeypatch.setattr(config, "k", 777.5)
    monkeypatch.setattr(schedule, "k", 7.0, raising=False)
    monkeypatch.setattr(slotted, "k", 3.0)
    before = array[0]
    array[0] = 7
    checked(jitted, X)
    config.rates.append(3.0)
    checked(jitted, X)
    config.rates.pop()
    array[0] = before


def test_methods_of_arrays_are_watched() -> None:
    numbers = np.array([1.0, 2.0])

    def scaled(x):
        return x * float(numbers.sum()) + numbers.max() + numbers.tolist()[0]

    jitted = bt.jit("cpu")(scaled)
    checked(jitted, X)
    numbers[0] = 10
    checked(jitted, X)
    found = bt.jit("cpu")(lambda x: x * torch.from_numpy(numbers)[0])
    checked(found, X)
    numbers[0] = 20
    checked(found, X)


def test_arrays_are_compared_as_in_python() -> None:
    numbers = np.array([1.0, 2.0, 4.0])
    x = torch.ones(3)
    found = bt.jit("cpu")(lambda x: x * (numbers > 1.5).sum())
    torch.testing.assert_close(found(x), x * 2)
    with pytest.raises(bt.CompileError, match="truth value of an array"):
        bt.jit("cpu")(lambda x: x * (1 < numbers < 3).sum())(x)


def test_rates_of_schedules_are_watched() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=8.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    jitted = bt.jit("cpu")(lambda x: x * schedule.get_last_lr()[0])
    for _ in range(3):
        checked(jitted, X)
        optimizer.step()
        schedule.step()


class Counting:
    def __init__(self) -> None:
        self.numbers = itertools.count()


counting, pairs, known = Counting(), zip([1, 2], [3, 4]), contextvars.ContextVar("known", default=1)
event, weak = threading.Event(), weakref.ref(counting)


def through_pairs(x):
    for one, other in pairs:
        x = x + one * other
    return x


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x * next(counting.numbers), "`counting.numbers` .*an iterator gives other"),
        (lambda x: x * sum(pairs), "`pairs` .*an iterator gives other"),
        (through_pairs, "`pairs` .*an iterator gives other"),
        (lambda x: x * known.get(), "another value at each call"),
        (lambda x: x if event.is_set() else -x, "another value at each call"),
        (lambda x: x * len(weak().__dict__), "another value at each call"),
        (lambda x: x * os.urandom(1)[0], "another value at each call"),
    ],
)
def test_what_gives_something_else_each_time_is_refused(fn, why) -> None:
    with pytest.raises(bt.CompileError, match=f"(?s)BT062.*{why}"):
        bt.jit("cpu")(fn)(X)
    assert next(counting.numbers) == 0
    counting.numbers = itertools.count()


def test_iterators_made_within_are_gone_through() -> None:
    def fn(x):
        numbers = iter([1, 2, 3])
        return x * next(numbers) + sum(numbers) + next(y for y in (x * 3, x))

    checked(bt.jit("cpu")(fn), X)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


mode = Mode.FAST


def test_what_stays_as_it_is_compiles_once(monkeypatch) -> None:
    @bt.jit("cpu")
    def chosen(x):
        assert isinstance(config, Config)
        assert callable(act)
        return x * 2 if mode == Mode.FAST else x * 3

    checked(chosen, X)
    monkeypatch.setattr(config, "k", 9.0)  # of which it reads nothing
    checked(chosen, X)
    assert compiled_again(chosen) == 1
    monkeypatch.setitem(globals(), "mode", Mode.SLOW)
    checked(chosen, X)


class Held:
    def __init__(self) -> None:
        self.tensor, self.rate = torch.ones(5), 2.0

    def __len__(self) -> int:
        return 3


states = [Held(), Held()]


def test_tensors_of_objects_are_read_at_each_call() -> None:
    @bt.jit("cpu")
    def total(x):
        for state in states:
            x = x + state.tensor * len(state)
        return x * states[0].rate

    for _ in range(3):
        checked(total, X)
        states[1].tensor.add_(1)
    assert compiled_again(total) == 1
    states[0].rate = 3.0
    checked(total, X)


class Cache:
    def __init__(self) -> None:
        self.k, self.owner, self.calls = torch.zeros(5), nn.Linear(5, 5), 0

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        self.calls += 1
        return 2


cache = Cache()
large = types.SimpleNamespace(k=2.0, rest=list(range(1000)))
deep = types.SimpleNamespace(k=2.0, rest=None)
for _ in range(2000):
    deep = types.SimpleNamespace(k=2.0, rest=deep)


class Lazy:
    __slots__ = ("k", "missing")

    def __getattribute__(self, name):
        if name == "missing":
            raise RuntimeError("lazy")
        return super().__getattribute__(name)

    def __str__(self) -> str:
        return "lazy"


lazy = Lazy()


def updated(x):
    if cache and cache != None:  # noqa: E711
        cache.k.add_(x)
    return cache.k * len(cache)


def shown(x):
    return x * len(str(large)[:3]) * len(str(lazy))


def deeply(x):
    return x * vars(deep)["k"]


@pytest.mark.parametrize("fn", [updated, shown, deeply])
def test_objects_that_hold_much_or_change_compile_once(fn) -> None:
    jitted = bt.jit("cpu")(fn)
    for _ in range(4):
        cache.k.zero_()
        expected = fn(X).clone()
        cache.k.zero_()
        torch.testing.assert_close(jitted(X), expected)
        cache.owner.weight.data.add_(1)
    assert compiled_again(jitted) == 1


def test_what_an_object_held_is_let_go() -> None:
    owner = types.SimpleNamespace(k=2.0, tensor=torch.ones(3))
    jitted = bt.jit("cpu")(lambda x: x * vars(owner)["k"])
    jitted(X)
    seen = weakref.ref(owner.tensor)
    owner.tensor = None
    assert seen() is None


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize("kind", [list, tuple, lambda items: Pair(*items)])
def test_sequences_of_arguments_are_let_go(kind) -> None:
    jitted = bt.jit("cpu")(lambda items, *more: items[0] + items[1] + more[0])
    given = [torch.ones(3), torch.full((3,), 2.0), torch.full((3,), 3.0)]
    torch.testing.assert_close(jitted(kind(given[:2]), given[2]), torch.full((3,), 6.0))
    seen = list(map(weakref.ref, given))
    del given
    gc.collect()
    assert [each() for each in seen] == [None] * 3
    (one,) = jitted.specializations()
    assert hash(one.signature) == hash(one.signature)
