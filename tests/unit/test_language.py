"""The language: what plain Python means inside a compiled function, against running it."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import babytriton as bt

Point = namedtuple("Point", "left right")


def check(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The compiled function gives what the plain one gives, structure included."""
    expected, found = fn(*args, **kwargs), bt.jit(fn)(*args, **kwargs)
    _same(found, expected)
    return found


def _same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected):
            _same(ours, theirs)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            _same(found[key], expected[key])
    else:
        assert found == expected


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
N = torch.arange(24).reshape(4, 6)


# ------------------------------------------------------------ operators


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: x // 0.5,
        lambda x, y: x % 0.7,
        lambda x, y: x**2 + 2**x,
        lambda x, y: x @ y.T,
        lambda x, y: -x + +y,
        lambda x, y: 1 - x,
        lambda x, y: 2 / (y.abs() + 1),
        lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y),
        lambda x, y: (x > 0) & (y > 0) | ~(x > y) ^ (y < 1),
        lambda x, y: abs(x),
        lambda x, y: pow(x, 2),
        lambda x, y: sum([x, y, x]),
        lambda x, y: divmod(7, 2)[0] * x,
        lambda x, y: functools.reduce(operator.mul, [x, y, x]),
    ],
)
def test_operators(fn: Callable[..., Any]) -> None:
    check(fn, X, Y)


@pytest.mark.parametrize(
    "fn",
    [
        lambda n: n << 2,
        lambda n: n >> 1,
        lambda n: n & 6 | 8 ^ n,
        lambda n: ~n,
        lambda n: n // 3 + n % 4,
        lambda n: -n // 3 + -n % 4,
        lambda n: n / 4,
    ],
)
def test_integer_operators(fn: Callable[..., Any]) -> None:
    check(fn, N)


def test_python_numbers_are_pythons() -> None:
    def f(x):
        rows, columns = x.shape
        scale = math.sqrt(columns) / 2 if rows > 2 else 0.0
        pick = "a" if x.ndim == 2 and not x.is_cuda else "b"
        return x * scale + {"a": 1, "b": 2}[pick], 1 < rows < 10, rows // 3, -columns, f"{rows:>3}"

    check(f, X)


def test_boolean_operators_on_constants_stop_early() -> None:
    def f(x, flag):
        y = flag and x.missing
        z = flag or x
        return z * 2, y

    check(f, X, False)


def test_boolean_operators_on_single_tensors() -> None:
    def f(x):
        low, high = x.min() < 0, x.max() > 100
        return low and high, low or high, not low, 0 < x.max() < 100

    found = bt.jit(f)(X)
    low, high = X.min() < 0, X.max() > 100
    expected = (low & high, low | high, not low, (X.max() > 0) & (X.max() < 100))
    _same(found, expected)


# ------------------------------------------------------------ statements


def test_assignment_forms() -> None:
    def f(x, y):
        a = b = x + 1
        (c, d), e = (a, b), y
        first, *middle, last = x, y, x, y
        [g] = [last]
        h: torch.Tensor = c + d + e
        (i := h * 2)
        del a
        return first + middle[0] + middle[1] + g + i, len(middle)

    check(f, X, Y)


def test_unpacking_a_tensor() -> None:
    def f(x):
        a, b, c, d = x
        return a * d - b * c

    check(f, X)


def test_augmented_assignment() -> None:
    def f(x, y):
        z = x + 0
        z += y
        z *= 2
        z -= 1
        z /= 3
        n = 1
        n += 2
        items = [1]
        items += [2]
        s = 1
        s += x
        return z * n, items, s

    check(f, X, Y)


def test_augmented_assignment_is_seen_by_every_name() -> None:
    def f(x):
        y = x + 1
        z = y
        z += 1
        return y, z

    found = check(f, X)
    assert found[0] is found[1]


def test_augmented_assignment_keeps_the_dtype() -> None:
    def f(n):
        m = n + 1
        m += 2
        return m

    check(f, N.to(torch.int8))


def test_augmented_assignment_refuses_another_dtype() -> None:
    def f(n):
        m = n + 1
        m += 0.5
        return m

    with pytest.raises(bt.CompileError, match="in-place"):
        bt.jit(f)(N)


def test_import_and_assert_inside() -> None:
    def f(x):
        import math as m
        from math import pi

        assert x.ndim == 2, "two dimensions"
        return x * pi + m.e

    check(f, X)


def test_assert_that_fails() -> None:
    def f(x):
        assert x.ndim == 3, "three dimensions"
        return x

    with pytest.raises(bt.CompileError, match="three dimensions"):
        bt.jit(f)(X)


def test_what_follows_return_is_not_compiled() -> None:
    def f(x):
        return x + 1
        return x.no_such_thing

    check(f, X)


def test_nothing_to_return() -> None:
    def f(x):
        """Only a docstring."""

    assert bt.jit(f)(X) is None


def test_results_of_all_kinds() -> None:
    def f(x, y):
        p = Point(x + 1, (y,))
        return {"t": (x, [y * 2, 3]), "p": p, "n": None, 1: "one", "x": x, "d": x.dtype}

    found = check(f, X, Y)
    assert found["x"] is X
    assert found["t"][0] is X


# ------------------------------------------------------------ attributes, methods, indexing


def test_properties() -> None:
    def f(x):
        return x.T, x.mT, x.shape, x.ndim, x.dtype, x.device, x.size(1), x.numel(), len(x)

    check(f, X)


def test_methods_and_keywords() -> None:
    def f(x):
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred.softmax(-1).sum(0), x.view(2, -1).to(torch.float64), x.max(dim=0).indices

    check(f, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[0],
        lambda x, i: x[-1, 2],
        lambda x, i: x[1:-1, ::2],
        lambda x, i: x[..., None],
        lambda x, i: x[None, :, 1],
        lambda x, i: x[..., -2:],
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[i, i],
        lambda x, i: x[[0, 2]],
        lambda x, i: x[i[:, None], i[None]],
        lambda x, i: x[10:],
    ],
)
def test_indexing(fn: Callable[..., Any]) -> None:
    check(fn, X, torch.tensor([2, 0, -1]))


def test_lists_of_bools_as_indices() -> None:
    some = [True, False, True]

    def f(x):
        y = x.clone()
        y[some] = 1.0
        y[:, [False, True, False]] += 2
        y[..., [False, False, True]] *= 3
        y[[False] * 3] += 4
        y[:, []] = x[:, []]
        return x[some], x[:, some], x[some, 1], x[some, [0, 2]], x[None, some], x[[False] * 3], y

    x = torch.arange(9.0).reshape(3, 3)
    check(f, x)
    some.append(True)
    with pytest.raises(bt.CompileError, match="a mask of 4 elements for dimension 0 with size 3"):
        bt.jit(f)(x)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
def test_lists_that_stand_for_tuples_of_indices() -> None:
    """As in torch, where these lists hold more than numbers."""

    def f(x, i):
        y = x.clone()
        y[[torch.arange(3), i]] = 7.0
        y[[[0, 1], [1, 2]]] -= 5
        y[[2, slice(1, 3)]] *= 3
        y[[0, 1]] += 1  # one list of numbers
        return x[[torch.arange(3), i]], x[[[0, 1], i[:2]]], x[[slice(0, 2), None]], x[[0, i]], y

    check(f, torch.arange(9.0).reshape(3, 3), torch.tensor([2, 0, 1]))


# ------------------------------------------------------------ functions

SCALE = 2.0
WEIGHT = torch.full((6,), 0.5)


def shifted(x, by=1.0, *rest, factor=1):
    return (x + by) * factor + sum(rest)


def twice(fn, x):
    return fn(fn(x))


def test_helpers_are_inlined() -> None:
    def f(x):
        def local(a, b=2):
            return a * b + x

        squared = lambda a: a * a  # noqa: E731
        return shifted(x, 2, 3, factor=4) + local(x) + twice(squared, x) + twice(shifted, x)

    check(f, X)


def test_a_helper_called_without_its_star_arguments_holds() -> None:
    def forward(x, *args, **kwargs):
        return torch.sum(x, *args, **kwargs)

    # A compiled program refuses to run once something outside it has changed: nothing has.
    compiled = bt.jit("cpu")(lambda x: forward(x)).lower(X).compile()
    torch.testing.assert_close(compiled(X), X.sum())


def test_star_arguments() -> None:
    def f(x, *rest, **named):
        return shifted(x, *rest, **named)

    check(f, X, 1, 2, factor=3)


def test_partial_and_compiled_functions() -> None:
    inner = bt.jit(lambda a, b: a - b)
    minus = functools.partial(inner, b=1)

    def f(x):
        return inner(x, 2) + minus(x)

    check(f, X)


@dataclass
class Layer:
    weight: torch.Tensor
    gain: float

    @property
    def doubled(self):
        return self.gain * 2

    def scale(self, x):
        return x * self.weight * self.doubled

    def __call__(self, x):
        return self.scale(x) + 1


def test_methods_of_objects() -> None:
    layer = Layer(torch.arange(6.0), 3.0)

    def f(x):
        return layer(x) + layer.scale(x)

    check(f, X)
    found = bt.jit(layer.scale)(X)
    torch.testing.assert_close(found, layer.scale(X))


class Model:
    def __init__(self, gain):
        self.gain = gain

    @bt.jit
    def forward(self, x):
        return x * self.gain


def test_jit_on_a_method() -> None:
    one, two = Model(1.5), Model(-2.0)
    torch.testing.assert_close(one.forward(X), X * 1.5)
    torch.testing.assert_close(two.forward(X), X * -2.0)
    one.gain = 4.0
    torch.testing.assert_close(one.forward(X), X * 4.0)
    assert isinstance(Model.forward, bt.JitFunction)


def test_modules_are_inlined() -> None:
    torch.manual_seed(0)
    norm, linear, gelu = nn.LayerNorm(6), nn.Linear(6, 3), nn.GELU()

    def f(x):
        return gelu(linear(norm(x)))

    with torch.no_grad():
        check(f, X)
        compiled = bt.jit(f)
        compiled(X)
        linear.weight.mul_(2)
        torch.testing.assert_close(compiled(X), f(X))
        linear.weight = nn.Parameter(torch.ones(3, 6))
        torch.testing.assert_close(compiled(X), f(X))


def test_lambdas_on_one_line() -> None:
    pair = (bt.jit(lambda x: x + 1), bt.jit(lambda x: x * 3))
    torch.testing.assert_close(pair[0](X), X + 1)
    torch.testing.assert_close(pair[1](X), X * 3)


def test_functional_with_defaults() -> None:
    check(lambda x: F.layer_norm(F.softmax(x, dim=-1), (6,), eps=1e-3), X)


# ------------------------------------------------------------ values from outside


def test_a_changed_global_number_recompiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bt.jit(lambda x: x * SCALE)
    torch.testing.assert_close(compiled(X), X * 2)
    monkeypatch.setitem(globals(), "SCALE", 5)
    torch.testing.assert_close(compiled(X), X * 5)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    torch.testing.assert_close(compiled(X), X * 2)


def test_a_global_tensor_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bt.jit(lambda x: x + WEIGHT)
    torch.testing.assert_close(compiled(X), X + 0.5)
    newest = compiled._specializations.newest
    monkeypatch.setitem(globals(), "WEIGHT", torch.full((6,), 3.0))
    torch.testing.assert_close(compiled(X), X + 3)
    assert compiled._specializations.newest is newest
    monkeypatch.setitem(globals(), "WEIGHT", torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(compiled(X), X.double() + 1)


def test_closure_cells() -> None:
    def make(scale):
        def f(x):
            return x * scale + bias

        def change(to):
            nonlocal scale
            scale = to

        bias = torch.ones(6)
        return f, change

    f, change = make(2.0)
    compiled = bt.jit(f)
    torch.testing.assert_close(compiled(X), X * 2 + 1)
    change(3)
    torch.testing.assert_close(compiled(X), X * 3 + 1)


def test_containers_from_outside() -> None:
    weights = {"a": [torch.ones(6), 2], "b": (0.5,)}
    compiled = bt.jit(lambda x: x * weights["a"][0] * weights["a"][1] + weights["b"][0])
    torch.testing.assert_close(compiled(X), X * 2 + 0.5)
    weights["a"][1] = 3
    torch.testing.assert_close(compiled(X), X * 3 + 0.5)
    weights["a"][0] = torch.zeros(6)
    torch.testing.assert_close(compiled(X), X * 0 + 0.5)


def test_a_changed_helper_recompiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bt.jit(lambda x: shifted(x))
    torch.testing.assert_close(compiled(X), X + 1)
    monkeypatch.setitem(globals(), "shifted", lambda x: x * 7)
    torch.testing.assert_close(compiled(X), X * 7)


def test_default_arguments() -> None:
    def f(x, scale=2.0, *, shift=1):
        return x * scale + shift

    compiled = bt.jit(f)
    torch.testing.assert_close(compiled(X), X * 2 + 1)
    torch.testing.assert_close(compiled(X, scale=3.0, shift=0), X * 3)


# ------------------------------------------------------------ random numbers, constants


def test_random_numbers_are_drawn_at_each_call() -> None:
    compiled = bt.jit(lambda x: x * 0 + torch.rand(4, 6))
    torch.manual_seed(3)
    first = compiled(X)
    second = compiled(X)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(first, X * 0 + torch.rand(4, 6))


def test_tensors_made_inside() -> None:
    def f(x):
        rows = torch.arange(4, device=x.device)[:, None]
        return x * rows + torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.zeros_like(x)

    check(f, X)


# ------------------------------------------------------------ more of what is outside


def doubling(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return wrapper


@doubling
def wrapped(x, by=1):
    return x + by


def test_wrapped_functions() -> None:
    check(wrapped, X, by=3)
    check(lambda x: wrapped(x) + wrapped(x, by=2), X)


class Base:
    def __init__(self):
        self.items = {"k": 2.0}

    def scale(self, x):
        return x * self.items["k"]

    def __getitem__(self, name):
        return self.items[name]


class Derived(Base):
    def scale(self, x):
        return super().scale(x) + 1

    @bt.jit
    def jitted(self, x):
        return self.scale(x)

    @classmethod
    @bt.jit
    def of_class(cls, x):
        return x + len(cls.__name__)


def test_super_and_classmethods() -> None:
    model = Derived()
    torch.testing.assert_close(model.jitted(X), X * 2 + 1)
    torch.testing.assert_close(Derived.of_class(X), X + 7)


def test_a_copied_object_has_methods_of_its_own() -> None:
    one = Derived()
    one.jitted(X)
    for two in (copy.copy(one), copy.deepcopy(one)):
        two.items = {"k": 5.0}
        torch.testing.assert_close(two.jitted(X), X * 5 + 1)
        torch.testing.assert_close(one.jitted(X), X * 2 + 1)


def test_items_of_objects_are_watched() -> None:
    table = Base()
    weights = nn.ParameterList([torch.ones(6), torch.full((6,), 3.0)])
    compiled = bt.jit(lambda x: x * table["k"] + weights[1] + getattr(table, "shift", 0))
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), X * 2 + 3)
        table.items["k"] = 4.0
        weights[1] = torch.zeros(6)
        torch.testing.assert_close(compiled(X), X * 4)


def test_containers_of_other_kinds_are_watched() -> None:
    table, names = OrderedDict(a=1.0, b=2.0), {"a"}
    compiled = bt.jit(lambda x: x * table["a"] if "a" in names else x)
    torch.testing.assert_close(compiled(X), X)
    table["a"] = 3.0
    torch.testing.assert_close(compiled(X), X * 3)
    names.clear()
    torch.testing.assert_close(compiled(X), X)


def test_reloaded_code_recompiles() -> None:
    def helper(x):
        return x + 1

    def other(x):
        return x - 1

    compiled = bt.jit(lambda x: helper(x))
    torch.testing.assert_close(compiled(X), X + 1)
    helper.__code__ = other.__code__
    torch.testing.assert_close(compiled(X), X - 1)


def test_lists_of_tensors_grow_in_place() -> None:
    def f(x):
        items = [x]
        same = items
        same += [x + 1]
        same.append(x + 2)
        return items

    assert len(check(f, X)) == 3


def test_a_list_argument_does_not_grow() -> None:
    def f(items, x):
        items.append(x)
        return items

    with pytest.raises(bt.CompileError, match="list may not change"):
        bt.jit(f)([X], X)


def test_raise() -> None:
    def f(x):
        raise NotImplementedError("not this one")

    with pytest.raises(bt.CompileError, match="Python raises NotImplementedError"):
        bt.jit(f)(X)


def test_divisions_by_zero() -> None:
    def f(x):
        zero = torch.div(x, 0.0, rounding_mode="trunc")
        return x / 0, x // 0, x % 0, zero, torch.fmod(x, 0), 0 / x

    x = torch.tensor([1.0, -2.0, 0.0])
    torch.testing.assert_close(bt.jit("cpu")(f)(x), f(x), equal_nan=True)


def test_a_registered_type_that_is_its_argument() -> None:
    from tvm import relax

    def operator(x):
        return x

    compiled = bt.jit("cpu")(lambda x: operator(x) + 0)
    compiled.register(operator, build=lambda site, x: relax.op.exp(x.expr), meta=lambda x: x)
    torch.testing.assert_close(compiled(X), torch.exp(X))


@pytest.mark.parametrize(
    "taken",
    [
        lambda x, i: x[:, i, None, :],
        lambda x, i: x[None, i, :, None, i],
        lambda x, i: x[i, None, i, i, None] + x[None, ..., i, None].sum(),
        lambda x, i: x[:, None, i, [0, 2]],
        lambda x, i: x[1, i, None, 1:],
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_dimensions_added_beside_numbers_of_the_run_time(taken, dynamic):
    def fn(x):
        return taken(x, (x > 0).sum() % 3)

    x = torch.randn(4, 5, 6, dtype=torch.float64)
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    found = []
    for each in (compiled, fn):
        y = x.clone().requires_grad_()
        result = each(y)
        found.append((result, *torch.autograd.grad(result.square().sum(), y)))
    torch.testing.assert_close(*found)
