"""Calls after the first, which take a shorter way, give what the first one's way gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import tvm
from torch.utils._python_dispatch import TorchDispatchMode

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


def shortly(compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a call that a shortcut runs."""
    before = compiled._arrivals.total()
    found = compiled(*args, **kwargs)
    assert compiled._arrivals.total() == before, "the long way"
    return found


def at_length(compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a call that no shortcut runs."""
    before = compiled._arrivals.total()
    found = compiled(*args, **kwargs)
    assert compiled._arrivals.total() > before, "a shortcut"
    return found


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

    compiled, other = warm(sine, pair[0]), warm(sine, pair[0])
    compiled.register(torch.sin, decompose=lambda x: x + 1)
    for _ in range(2):
        assert torch.equal(compiled(pair[0]), pair[0] + 1)
        torch.testing.assert_close(other(pair[0]), torch.sin(pair[0]))
    assert len(other.specializations()) == 1


class Seen(TorchDispatchMode):
    """Counts the operators of torch that run."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_modes_that_see_torchs_calls_see_the_functions(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    compiled = warm(lambda a, b: (a + b) * 2, *pair)
    for _ in range(2):
        with Seen() as seen:
            compiled(*pair)
        assert seen.count == 2
        compiled(*pair)
        assert seen.count == 2


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


def test_captured_tensors() -> None:
    weight = torch.randn(8)

    @bt.jit("cpu")
    def captured(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    x = torch.randn(4, 8)
    captured(x)
    for _ in range(2):
        weight += 1
        assert torch.equal(shortly(captured, x), x * weight)
        weight = torch.randn(8)
        assert torch.equal(shortly(captured, x), x * weight)
    for other in (torch.randn(4, 1), torch.randn(16)[::2], weight.double(), weight * 2):
        weight = other
        torch.testing.assert_close(captured(x), x * weight)
        torch.testing.assert_close(captured(x), x * weight)
    weight = torch.randn(8, requires_grad=True)
    assert captured(x).requires_grad
    with torch.no_grad():
        assert not captured(x).requires_grad
    weight = 3.0
    assert torch.equal(captured(x), x * 3.0)


def test_what_is_captured_may_vanish() -> None:
    box = SimpleNamespace(weight=torch.randn(8))
    captured = warm(lambda x: x * box.weight, torch.randn(8))
    box.weight = torch.randn(8)
    x = torch.randn(8)
    assert torch.equal(shortly(captured, x), x * box.weight)
    del box.weight
    for _ in range(2):
        with pytest.raises(bt.CompileError, match="weight"):
            captured(x)


def test_modules() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(1.0), torch.nn.ReLU())
    compiled = bt.jit("cpu")(module.eval().requires_grad_(False))
    x = torch.randn(3, 8)
    compiled(x)
    torch.testing.assert_close(shortly(compiled, x), module(x))
    module[0].weight = torch.nn.Parameter(torch.randn(4, 8), requires_grad=False)
    module[0].bias.add_(1)
    torch.testing.assert_close(shortly(compiled, x), module(x))
    hook = module[2].register_forward_hook(lambda module, args, result: result + 1)
    torch.testing.assert_close(at_length(compiled, x), module(x))
    torch.testing.assert_close(shortly(compiled, x), module(x))
    hook.remove()
    torch.testing.assert_close(compiled(x), module(x))
    module.train()
    assert torch.equal(at_length(compiled, x), torch.zeros(3, 4))
    module.eval()
    module[2] = torch.nn.Tanh()
    torch.testing.assert_close(at_length(compiled, x), module(x))
    module.requires_grad_(True)
    assert compiled(x).requires_grad
    assert shortly(compiled, x).requires_grad
    state = {name: tensor.detach() * 2 for name, tensor in module.named_parameters()}
    with torch.no_grad():
        expected = torch.func.functional_call(module, state, (x,))
        torch.testing.assert_close(
            torch.func.functional_call(_Holder(compiled, module), state, x), expected
        )


class _Holder(torch.nn.Module):
    """Has the parameters of a module, and a compiled function of it."""

    def __init__(self, compiled: Any, module: torch.nn.Module) -> None:
        super().__init__()
        self.compiled = compiled
        for name, child in module.named_children():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> Any:
        return self.compiled(x)


def test_writes() -> None:
    total, scale = torch.zeros(4, 8), torch.ones(8)

    @bt.jit("cpu")
    def added(x: torch.Tensor, by: torch.Tensor) -> None:
        x.add_(by)
        total.add_(x * scale)

    x, by = torch.randn(4, 8), torch.randn(8)
    expected, expected_total = x.clone(), torch.zeros(4, 8)
    added(x, by)
    for _ in range(3):
        assert shortly(added, x, by) is None
    for _ in range(4):
        expected.add_(by)
        expected_total.add_(expected)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(total, expected_total)
    assert x._version == 4
    memory = torch.zeros(40)
    apart, overlapping = memory[32:], memory[24:32]
    shortly(added, memory[:32].view(4, 8), apart)
    with pytest.raises(ValueError, match="memory"):
        added(memory[:32].view(4, 8), overlapping)
    with pytest.raises(ValueError, match="memory"):
        added(total, by)


def test_writes_of_any_size() -> None:
    def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = bt.jit("cpu", dynamic=True)(doubled)
    compiled(torch.ones(3), torch.ones(3))
    for n in (2, 5, 9):
        x, y = torch.randn(n), torch.randn(n)
        expected = x * 2
        torch.testing.assert_close(shortly(compiled, x, y), expected + y)
        torch.testing.assert_close(x, expected)
    memory = torch.ones(9)
    torch.testing.assert_close(shortly(compiled, memory[:4], memory[4:8]), torch.full((4,), 3.0))
    with pytest.raises(ValueError, match="memory"):
        compiled(memory[:4], memory[3:7])


def test_arguments_by_name() -> None:
    def fn(a: Any, b: Any = 2.0, *rest: Any, scale: float = 1.0, flip: bool = False, **more: Any):
        found = (b - a if flip else a - b) * scale
        for i, x in enumerate((*rest, *more.values())):
            found = found + x * (i + 1)
        return found

    compiled = bt.jit("cpu")(fn)
    x, y, z = (torch.randn(3, 4) for _ in range(3))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}),
        ((x,), {"b": y}),
        ((), {"a": x, "b": y}),
        ((), {"b": x, "a": y}),
        ((x, y, z), {}),
        ((x, y, z), {"scale": 3.0}),
        ((x, y), {"scale": 2.0, "flip": True}),
        ((x, y), {"flip": True, "scale": 0.5}),
        ((x, y), {"more": z}),
        ((x, y), {"other": z}),
        ((x, y, y), {"p": z, "q": x}),
        ((x, y, y), {"q": z, "p": x}),
    ]
    for args, kwargs in calls:
        for _ in range(9):  # by then every program has tried for a shortcut again
            torch.testing.assert_close(compiled(*args, **kwargs), fn(*args, **kwargs))
    torch.testing.assert_close(shortly(compiled, *args, **kwargs), fn(*args, **kwargs))
    with pytest.raises(TypeError, match="BT108"):
        compiled(x, c=y, scale=3.0, b=1.0, a=x)


class _Pair(NamedTuple):
    first: Any
    second: Any


def test_structures() -> None:
    def fn(inputs: Any, options: dict[str, Any]) -> Any:
        first, second = inputs
        kinds = {list: 1.0, tuple: 2.0, _Pair: 3.0}
        found = first["x"] * options["scale"] + second[0] * kinds[type(inputs)]
        return {"found": [found, second], "mode": options["mode"], "pair": _Pair(found, 1)}

    compiled = bt.jit("cpu")(fn)
    x, y = torch.randn(3), torch.randn(3)
    for kind in (list, tuple, lambda pair: _Pair(*pair)):
        for options in ({"scale": 2.0, "mode": "a"}, {"mode": "a", "scale": 2.0}):
            for mode in ("a", "b"):
                for scale in (0.5, 2):
                    given = kind([{"x": x}, (y, scale)]), options | {"mode": mode}
                    for _ in range(2):
                        found, expected = compiled(*given), fn(*given)
                        torch.testing.assert_close(found["pair"], expected["pair"])
                        torch.testing.assert_close(found["found"][0], expected["found"][0])
                        assert found["found"][1][0] is y
                        assert found["mode"] == mode
                        assert type(found["pair"]) is _Pair
    torch.testing.assert_close(shortly(compiled, *given)["found"][0], expected["found"][0])
    longer = [{"x": x, "y": y}, (y, scale, 1)], options
    torch.testing.assert_close(at_length(compiled, *longer)["found"][0], fn(*longer)["found"][0])


def test_defaults_that_may_change() -> None:
    def fn(x: torch.Tensor, factors: list[float] = [2.0], by: torch.Tensor = torch.ones(3)) -> Any:  # noqa: B006, B008
        return x * factors[0] + by

    compiled = bt.jit("cpu")(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), fn(torch.ones(3)))
        fn.__defaults__[0][0] += 1
    by = torch.zeros(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(by, [5.0], by), by)
    shortly(compiled, by, [5.0], by)

    def inside(x: torch.Tensor, factors: Any = ([2.0], {"by": 1})) -> Any:
        return x * factors[0][0] + factors[1]["by"]

    compiled = bt.jit("cpu")(inside)
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), inside(torch.ones(3)))
        inside.__defaults__[0][0][0] += 1
        inside.__defaults__[0][1]["by"] += 1


def test_gradients() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x * w).sum(-1), (x > 0).float()

    compiled = bt.jit("cpu")(fn)
    x = torch.randn(4, 8, requires_grad=True)
    for step in range(4):
        w = torch.randn(8, requires_grad=True)
        found, mask = (compiled if step == 0 else partial(shortly, compiled))(x, w)
        expected, _ = fn(x, w)
        assert found.requires_grad
        assert not mask.requires_grad
        grad = torch.randn(4)
        strided = torch.randn(4, 2)[:, 0]
        torch.testing.assert_close(
            torch.autograd.grad(found, (x, w), strided, True),
            torch.autograd.grad(expected, (x, w), strided, True),
        )
        for create_graph in (False, True):
            ours = torch.autograd.grad(found, (x, w), grad, True, create_graph)
            theirs = torch.autograd.grad(expected, (x, w), grad, True, create_graph)
            torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours[0].sum(), w), torch.autograd.grad(theirs[0].sum(), w)
        )
    with torch.no_grad():
        assert not compiled(x, w)[0].requires_grad
    assert not compiled(x.detach(), w.detach())[0].requires_grad
    assert compiled(x.detach(), w)[0].requires_grad


def test_gradients_and_writes() -> None:
    steps = torch.zeros(())

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        steps.add_(1)
        y = x.exp() * w
        x.mul_(0.5)
        return y

    compiled = bt.jit("cpu")(fn)
    given, w = torch.randn(5), torch.randn(5, requires_grad=True)
    for step in range(1, 4):
        x = given.clone()
        found = compiled(x, w) if step == 1 else shortly(compiled, x, w)
        found.sum().backward()
        torch.testing.assert_close(w.grad, given.exp())
        torch.testing.assert_close(x, given * 0.5)
        assert steps.item() == step
        w.grad = None


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_that_kernels_cannot_read(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 + y, x

    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    x, y = torch.randn(8, 4).t(), torch.randn(4, 8)
    compiled(x, y)
    assert shortly(compiled, x, y)[1] is x
    for other in (torch.randn(4, 9)[:, 1:], y, torch._neg_view(y), torch.randn(1, 8).expand(4, 8)):
        for args in ((x, other), (other, y), (other, other)):
            for _ in range(9):  # by then it has tried for a shortcut again
                torch.testing.assert_close(compiled(*args), fn(*args))
    weight = torch.randn(8, 4, requires_grad=True)
    for _ in range(3):
        (grad,) = torch.autograd.grad(compiled(weight.t(), y)[0].sum(), weight)
        torch.testing.assert_close(grad, torch.full((8, 4), 2.0))


def test_writes_to_tensors_that_kernels_cannot_read() -> None:
    whole = torch.randn(8, 4)
    compiled = bt.jit("cpu")(lambda x, y: x.mul_(y))
    expected = whole.clone()
    for step in range(3):
        found = (compiled if step == 0 else partial(shortly, compiled))(
            whole.t(), torch.full((8,), 2.0)
        )
        expected.mul_(2)
        assert torch.equal(whole, expected)
        assert found.data_ptr() == whole.data_ptr()


def test_captured_tensors_that_kernels_cannot_read() -> None:
    memory = torch.zeros(2, 4, 3)
    kept = memory.transpose(1, 2)

    def added(x: torch.Tensor) -> torch.Tensor:
        kept.add_(x)
        return kept

    def read(x: torch.Tensor) -> Any:
        return x + 1, kept

    compiled, reading = bt.jit("cpu")(added), bt.jit("cpu")(read)
    x = torch.ones(2, 3, 4)
    for step in range(1, 5):
        found = compiled(x) if step == 1 else shortly(compiled, x)
        assert torch.equal(memory, torch.full((2, 4, 3), float(step)))
        assert found.data_ptr() == memory.data_ptr()
        assert (reading(x) if step == 1 else shortly(reading, x))[1] is kept


def test_many_writes() -> None:
    """Not every two tensors are compared."""

    def step(ps: list[torch.Tensor], gs: list[torch.Tensor]) -> None:
        for p, g in zip(ps, gs):
            p.sub_(g)

    compiled = bt.jit("cpu")(step)
    ps, gs = [torch.ones(4) for _ in range(60)], [torch.ones(4) for _ in range(60)]
    compiled(ps, gs)
    shortly(compiled, ps, gs)
    assert all(torch.equal(p, torch.full((4,), -1.0)) for p in ps)
    parts = [*torch.zeros(480).split(4)]
    shortly(compiled, parts[:60], parts[:59:-1])
    for first, last in ((parts[:60], parts[59:119]), ([*parts[:59], parts[0]], gs)):
        with pytest.raises(ValueError, match="memory"):
            compiled(first, last)


def test_keys_that_do_not_compare() -> None:
    def fn(state: dict[Any, torch.Tensor]) -> torch.Tensor:
        return sum(state.values())

    compiled = bt.jit("cpu")(fn)
    for _ in range(3):
        first, second = torch.ones(2), torch.ones(2)
        for _ in range(2):
            torch.testing.assert_close(compiled({first: first, second: second}), first + second)


def test_what_cannot_be_written_is_run_at_length() -> None:
    def wrapped(found: Any) -> Any:
        for _ in range(25):
            found = (found,)
        return found

    def nested(x: torch.Tensor) -> Any:
        found = x + 1
        for _ in range(10):
            found = wrapped(found)
        return found

    compiled = bt.jit("cpu")(nested)
    for _ in range(3):
        found = compiled(torch.ones(2))
        for _ in range(250):
            (found,) = found
        assert found.tolist() == [2.0, 2.0]


def test_what_changes_while_a_shortcut_is_made() -> None:
    class Changing:
        reads = 0

        def __getattr__(self, name: str) -> torch.Tensor:
            self.reads += 1
            return torch.arange(4.0, dtype=torch.float64) if self.reads == when else torch.ones(3)

    def reader(box: Any) -> Any:
        return lambda x: x + box.weight

    for when in range(1, 9):
        box = Changing()
        compiled = bt.jit("cpu")(reader(box))
        for _ in range(6):
            with contextlib.suppress(bt.CompileError, ValueError):
                compiled(torch.ones(3))
        while box.reads <= when:
            assert box.weight is not None
        for _ in range(3):
            assert compiled(torch.ones(3)).tolist() == [2.0] * 3


def test_faults_are_the_same_in_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise tvm.error.InternalError("out of order")

    compiled = warm(add, torch.ones(2), torch.ones(2))
    (attempt,) = compiled._shortcuts
    (kernel,) = [name for name in attempt.__globals__ if name.startswith("kernel_")]
    monkeypatch.setitem(attempt.__globals__, kernel, refuse)
    with pytest.raises(bt.CompileError, match="BT900"):
        shortly(compiled, torch.ones(2), torch.ones(2))


def test_gradients_of_changing_layouts() -> None:
    compiled = bt.jit("cpu")(lambda x: x.exp() * 2)
    x = torch.randn(4, 6, requires_grad=True)
    for _ in range(9):
        for grad in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.ones(()).expand(4, 6)):
            (found,) = torch.autograd.grad(compiled(x), x, grad)
            torch.testing.assert_close(found, grad * 2 * x.exp())


def test_what_has_no_shortcut_is_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    compiled = bt.jit("cpu")(lambda x, factors=[2.0]: x * factors[0])
    x = torch.randn(4)
    compiled(x)
    (program,) = compiled._arrivals
    before = type(program).shortcut
    monkeypatch.setattr(
        type(program), "shortcut", lambda self, *call: tries.append(1) or before(self, *call)
    )
    for _ in range(100):
        torch.testing.assert_close(compiled(x), x * 2)
    assert len(tries) == 6


def test_functions_without_tensors() -> None:
    compiled = bt.jit("cpu")(lambda n: torch.ones(n) / 2)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            for _ in range(2):
                assert compiled(3).dtype == dtype
                with torch.inference_mode():
                    assert compiled(3).is_inference()
        finally:
            torch.set_default_dtype(torch.float32)


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
        exact = scored(x.double(), w.double()).float()  # torch's own sums may be 1e-4 off
        torch.testing.assert_close(compiled(x, w), exact)
        torch.testing.assert_close(compiled(x, w), exact)
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
            for _ in range(9):  # by then it has tried for a shortcut again
                torch.testing.assert_close(compiled(*args), fn(*args))
            torch.testing.assert_close(shortly(compiled, *args), fn(*args))
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


# ------------------------------------------------------------ calls of one program


def compiled_for(fn: Any, *arguments: Any, dynamic: bool | None = None) -> bt.Compiled:
    """A program that has a shortcut for calls like this one."""
    compiled = bt.jit("cpu", dynamic=dynamic)(fn).lower(*arguments).compile()
    torch.testing.assert_close(compiled(*arguments), fn(*arguments))
    return compiled


@contextlib.contextmanager
def at_no_length(compiled: bt.Compiled) -> Iterator[None]:
    """No call inside is run in any way but by a shortcut."""
    before = compiled._calls._calls
    yield
    assert compiled._calls._calls == before, "the long way"


def test_calls_of_a_program_take_shortcuts(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = pair
    compiled = compiled_for(add, a, b)
    with at_no_length(compiled):
        assert torch.equal(compiled(b, b * 2), b * 3)
    assert torch.equal(compiled(a, b=b), a + b)
    with at_no_length(compiled):
        assert torch.equal(compiled(b, b=a), a + b)


def test_calls_of_a_program_are_checked_as_before(
    pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    compiled = compiled_for(add, *pair)
    for other, message in (
        ((pair[0], torch.randn(8)), r"argument `b`: wrong shape.*got f32\[8\]"),
        ((pair[0].double(), pair[1]), "argument `a`: .*float64"),
        ((pair[0],), "missing a required argument: 'b'"),
        ((pair[0], 2.0), "argument `b`: "),
    ):
        with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
            compiled(*other)
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="another setting"):
        compiled(*pair)
    with at_no_length(compiled):
        assert torch.equal(compiled(*pair), add(*pair))


def test_a_program_sees_what_was_captured_change(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3)
    compiled = compiled_for(lambda x: x * FACTOR, x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    with pytest.raises(ValueError, match="`FACTOR` is another than"):
        compiled(x)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    with at_no_length(compiled):
        assert torch.equal(compiled(x), x * 2.0)


def test_a_program_of_any_size_and_its_conditions() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x[:4] + x[-4:] if x.shape[0] > 5 else x * 2

    compiled = compiled_for(halves, torch.randn(9), dynamic=True)
    x = torch.randn(40)
    with at_no_length(compiled):
        assert torch.equal(compiled(x), halves(x))
    with pytest.raises(ValueError, match="it holds where x_0 > 5"):
        compiled(torch.randn(4))


def test_a_program_that_writes_and_one_with_gradients() -> None:
    def scale(x: torch.Tensor, s: float) -> torch.Tensor:
        x.mul_(s)
        return x + 1

    x = torch.ones(6)
    compiled = bt.jit("cpu")(scale).lower(x, 2.0).compile()
    compiled(x, 2.0)
    with at_no_length(compiled):
        assert torch.equal(compiled(x, 3.0), torch.full((6,), 7.0))
    assert torch.equal(x, torch.full((6,), 6.0))

    w = torch.randn(4, requires_grad=True)
    cubed = compiled_for(lambda w: w**3, w)
    with at_no_length(cubed):
        cubed(w).sum().backward()
    torch.testing.assert_close(w.grad, 3 * w.detach() ** 2)
