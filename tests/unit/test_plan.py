"""Programs run as steps of a Python function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm

import babytriton as bt
from babytriton.jit import REGISTRY
from babytriton.plan import Kind
from babytriton.runtime import attempts, direct
from babytriton.runtime.attempts import MISSED
from babytriton.runtime.dispatch import Launcher
from babytriton.shortcuts import Moment
from tests.conformance.gpu import TARGET
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def runner(compiled: Any) -> Any:
    """What runs the newest program."""
    return compiled._specializations.newest.runner._launcher


def check(fn: Any, *arguments: Any, **options: Any) -> Any:
    """The function compiled, which gives what it gives itself, at the first call and at others."""
    compiled = bt.jit("cpu", **options)(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(*arguments), fn(*arguments))
    return compiled


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = torch.softmax(x @ y, -1)
    values, places = torch.sort(h * 2, -1)
    return h.sum(0), values[1:], (places, torch.cat([x, x], 1)), h


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_and_torch_take_turns(dynamic: bool) -> None:
    x, y = torch.randn(4, 6), torch.randn(6, 8)
    compiled = check(several, x, y, dynamic=dynamic)
    assert isinstance(runner(compiled), direct.DirectLauncher)
    for rows in (5, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x, y), several(x, y))
    assert len(compiled.specializations()) == (1 if dynamic else 3)


def test_torch_alone() -> None:
    def sorted_(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x).values

    compiled = check(sorted_, torch.randn(50))
    (found,) = compiled.specializations()
    assert found.kernels == 0
    assert compiled._shortcuts


def test_much_memory_comes_from_the_virtual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) @ x).relu()

    monkeypatch.setattr("babytriton.running.LARGE", 1 << 10)
    monkeypatch.setattr("babytriton.runtime.direct.LARGE", 1 << 10)
    assert isinstance(runner(check(twice, torch.randn(32, 32))), Launcher)
    assert isinstance(runner(check(twice, torch.randn(4, 4))), direct.DirectLauncher)
    compiled = bt.jit("cpu", dynamic=True)(twice)
    for n in (4, 32, 5):
        x = torch.randn(n, n)
        torch.testing.assert_close(compiled(x), twice(x))
    assert isinstance(runner(compiled), direct.DirectLauncher)


def test_what_is_not_needed_any_more_is_let_go() -> None:
    """No more tensors live at a time than the chain needs."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.sort(x + 1).values
        return x

    alive: list[int] = []
    compiled = bt.jit("cpu")(chain)
    x = torch.randn(8)
    compiled(x)
    launcher = runner(compiled)
    for name, call in list(launcher._globals.items()):
        if name.startswith("call_"):

            def counted(given: Any, call: Any = call) -> Any:
                alive.append(sum(isinstance(o, torch.Tensor) for o in _locals_of_run()))
                return call(given)

            launcher._globals[name] = counted
    torch.testing.assert_close(launcher([x, *[None] * 4])[0], chain(x))
    # The argument, and what is sorted.
    assert alive == [2, 2, 2, 2]


def _locals_of_run() -> Any:
    import inspect

    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "run":
        frame = frame.f_back
    assert frame is not None
    return list(frame.f_locals.values())


def test_effects_stay_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    def printing(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("first", y)
        z = y * 2
        print("then", z)
        return z

    compiled = bt.jit("cpu")(printing)
    x = torch.zeros(2)
    for _ in range(3):
        compiled(x)
        found = capsys.readouterr().out
        printing(x)
        assert found == capsys.readouterr().out


def test_torchs_errors_are_its_own() -> None:
    def chosen(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x, 2) + at

    compiled = bt.jit("cpu")(chosen)
    compiled(torch.ones(4), torch.tensor([1, 2]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"probability tensor|invalid multinomial"):
            compiled(-torch.ones(4), torch.tensor([1, 2]))


def test_each_call_has_results_of_its_own() -> None:
    x, y = torch.randn(4, 6), torch.randn(6, 8)
    compiled = bt.jit("cpu")(several)
    first = compiled(x, y)
    kept = [t.clone() for t in (first[0], first[1], first[3])]
    compiled(x + 1, y)
    for before, now in zip(kept, (first[0], first[1], first[3])):
        assert torch.equal(before, now)


def test_kernels_are_given_addresses_of_tensors_that_they_know() -> None:
    """And tensors where these tell sizes, and numbers as they are."""

    def scaled(x: torch.Tensor, w: torch.Tensor, by: float) -> torch.Tensor:
        return x * w * by

    x, w = torch.randn(4, 6), torch.randn(6)
    known, told = check(scaled, x, w, 0.5), check(scaled, x, w, 0.5, dynamic=True)
    assert kinds(known) == [Kind.FLOAT, Kind.ADDRESS, Kind.ADDRESS, Kind.ADDRESS]
    assert kinds(told) == [Kind.FLOAT, Kind.TENSOR, Kind.TENSOR, Kind.TENSOR]


def test_where_tensors_lie_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, in the place of a GPU's tensors and of its kernel."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w + 1

    x, w = torch.randn(4, 8), torch.randn(8)
    jitted = check(scaled, x, w)
    launcher, given = runner(jitted), []
    monkeypatch.setattr(attempts, "_is_on_gpu", lambda tensor: True)
    monkeypatch.setattr(launcher, "_is_on_gpu", True)
    monkeypatch.setattr(launcher, "_builtin", lambda *_: lambda *args: given.append(args))
    shortcut = jitted._specializations.newest.shortcut((x, w), {}, Moment.now(REGISTRY))
    result = shortcut((x, w), {})
    assert given == [(x.data_ptr(), w.data_ptr(), result)]
    apart = torch.randn(33)[1:].reshape(4, 8)
    assert shortcut((apart, w), {}) is MISSED
    assert len(given) == 1


@needs_gpu
@pytest.mark.parametrize("telling", range(4))
def test_any_tensor_tells_which_gpu_it_is(telling: int) -> None:
    x, w, y = (torch.randn(40, 6) for _ in range(3))
    kernel = bt.jit(TARGET)(lambda x, w, y: x * w + y).lower(x, w, y).compile()
    launch = kernel.executable.kernel(*kernel.kernels)
    given = [tvm.runtime.from_dlpack(t).copyto(tvm.cuda(0)) for t in (x, w, y, torch.zeros(40, 6))]
    launch(*(t if n == telling else t.data_ptr() for n, t in enumerate(given)))
    found = torch.from_dlpack(given[-1].copyto(tvm.cpu()))
    torch.testing.assert_close(found, x * w + y)


def kinds(compiled: Any) -> list[Kind]:
    """What the one kernel of the newest program asks of its arguments."""
    (kernel,) = (value for name, value in runner(compiled).known.items() if "kernel_" in name[:7])
    found, *_ = kernel.__self__
    return [*map(Kind, found[16:])]


def test_numbers_in_the_place_of_tensors_are_not_asked_for_a_device() -> None:
    def softmaxes(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, x.argmax(-1))

    x = torch.randn(5000, 7)
    assert "AllocWorkspace" in bt.jit("cpu")(softmaxes).source(x, kind="llvm")
    assert "%dev_id" not in bt.jit("cpu")(softmaxes).source(x, kind="llvm")
    check(softmaxes, x)
