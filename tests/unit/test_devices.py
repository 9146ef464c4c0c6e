"""Several devices in one function: placement, transfers, and the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm
from tvm import relax, tirx

import babytriton as bt
from babytriton.frontend.lowering import Output, Returned
from babytriton.runtime.dispatch import fill
from babytriton.stages import target_of
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
N = torch.arange(20).reshape(4, 5)


def article(x, y, there):
    with bt.device("cpu"):
        total = x + y
    with bt.device(there):
        out = total + x
    return out * 1


def back_and_forth(x, y, there):
    a = (x * y).exp()
    with bt.device(there):
        b = (a.softmax(-1) + x) @ y.T
        c = b.relu() + 1
        with bt.device("cpu"):
            d = c.sum(0) * 2
        e = c + d
    with bt.device("cpu"):
        return e.to("cpu") + b, {"c": c, "d": d}, x


def same_kernel_on_both(x, y, there):
    with bt.device("cpu"):
        a = x.exp()
    with bt.device(there):
        b = x.exp()
    with bt.device("cpu"):
        return a + b


def made_of_nothing(x, y, there):
    with bt.device(there):
        rows = torch.arange(4.0)[:, None]
        steps = torch.tensor([1.0, 2, 3, 4, 5])
        zeros = torch.zeros(4, 5)
        full = torch.full((5,), 2.0, dtype=torch.float64)
        mask = torch.ones(4, 5, dtype=torch.bool).tril()
        z = (x * rows + steps + zeros).masked_fill(~mask, 0.5) * full
    return z, zeros, mask


def whole_numbers(x, n, there):
    with bt.device(there):
        return (n * 2 + 1) // 3, n.sum(), n.to(torch.int8), n.argmax(-1)


def rows_of_many_kinds(x, y, there):
    with bt.device(there):
        a = torch.nn.functional.layer_norm(x, (5,))
        b = torch.cat((a, y), 0)[1:, ::2]
        c = torch.einsum("ij,kj->ik", x, y).std(-1)
        d = torch.nn.functional.gelu(x).view(2, 10).T.contiguous()
    return b + 0.0, c, d, x.mean() - 1


def unused_results(x, y, there):
    with bt.device(there):
        z = x + 1
        _ = z.exp()
    with bt.device("cpu"):
        return z * 2


def by_methods(x, y, there):
    z = x.to(there) if there == "cuda" else x
    w = (z * 2).sum(0)
    return w.cpu() + y.cpu(), (y.to(w.device) + w).to("cpu", torch.float64)


def in_place(x, y, there):
    a = x + 1
    with bt.device(there):
        b = y * 2
        b += 1
        a *= 3
        c = a + b
    a -= 0.5
    return a, b, c


PROGRAMS = [
    in_place,
    article,
    back_and_forth,
    same_kernel_on_both,
    made_of_nothing,
    rows_of_many_kinds,
    unused_results,
    by_methods,
]


def run(fn: Callable[..., Any], *args: Any, target: bt.Target | str = "cpu") -> Any:
    """What a function computes on the emulator, or on a GPU where there is one."""
    compiled = bt.jit(target)(fn).lower(*args, "cuda").compile()
    lowering = compiled.scheduled.lowered.lowering
    assert "cuda" in {device.type for device in lowering.devices}
    assert "__global__" in compiled.source("cuda")
    assert "define" in compiled.source("llvm")
    devices = [tvm.device(device.type, device.index or 0) for device in lowering.devices]
    machine = relax.VirtualMachine(compiled.executable.vm_executable, devices, memory_cfg="naive")
    # TVM's own tensors: torch knows nothing of the emulated device.
    given = [tvm.runtime.from_dlpack(arg.clone()).copyto(devices[0]) for arg in args]
    parameters = [given[input] for input in lowering.inputs]
    outputs = machine[compiled.executable.entry](*parameters)

    def leaf(place: Output | Returned) -> torch.Tensor:
        found = parameters[place.input] if isinstance(place, Returned) else outputs[place.index]
        return torch.from_dlpack(found.copyto(tvm.cpu()))

    return fill(lowering.result, leaf, (Output, Returned))


def plain(fn: Callable[..., Any], *args: Any) -> Any:
    """What torch computes with everything on the CPU."""
    return fn(*args, "cpu")


@needs_gpu
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("target", ["cpu", gpu.TARGET], ids=["home-cpu", "home-gpu"])
def test_two_devices(fn: Callable[..., Any], target: bt.Target | str) -> None:
    found, expected = run(fn, X, Y, target=target), plain(fn, X, Y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@needs_gpu
def test_integers_on_two_devices() -> None:
    torch.testing.assert_close(run(whole_numbers, X, N), plain(whole_numbers, X, N))


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_device_named_twice(fn: Callable[..., Any]) -> None:
    compiled = bt.jit("cpu")(fn)
    torch.testing.assert_close(compiled(X, Y, "cpu"), plain(fn, X, Y))
    assert compiled._specializations.newest.scheduled.lowered.lowering.devices == (
        torch.device("cpu"),
    )
    assert "vdevice" not in compiled._specializations.newest.scheduled.lowered.as_text()


def test_devices_by_other_names() -> None:
    def f(x):
        with bt.device(torch.device("cuda:1")):
            y = x + 1
        with bt.device("cuda:0"):
            z = y * 2
        assert z.device == torch.device("cuda:0")
        assert z.is_cuda
        assert x.is_cpu
        return z.cuda() + 1, z.cpu()

    lowered = bt.jit("cpu")(f).lower(X)
    names = [str(device) for device in lowered.lowering.devices]
    assert names == ["cpu", "cuda:1", "cuda:0"]
    assert lowered.as_text().count("to_vdevice") == 3
    kernels = lowered.schedule().mod
    targets = [
        func.attrs["target"].kind.name
        for _, func in kernels.functions_items()
        if isinstance(func, tirx.PrimFunc)
    ]
    assert targets == ["cuda"] * len(targets)


def test_a_value_crosses_once() -> None:
    def f(x):
        with bt.device("gpu"):
            a = x + 1
            b = x.exp()
            c = x * a
        return a, b, c

    scheduled = bt.jit("cpu")(f).lower(X).schedule()
    assert scheduled.as_text().count("R.to_vdevice(") == 1


def test_operators_on_two_devices_do_not_fuse() -> None:
    def f(x):
        y = x + 1
        with bt.device("gpu"):
            return y * 2

    scheduled = bt.jit("cpu")(f).lower(X).schedule()
    rules = {
        name: func.attrs.get("target")
        for name, func in scheduled.mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    assert len(rules) == 2


def test_a_call_without_tensors_runs_on_torchs_default_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = bt.jit(lambda n: torch.arange(n) * 2)
    assert counted(3).tolist() == [0, 2, 4]
    monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda", 1))
    assert target_of(counted.lower(3).signature).kind == "cuda"
    with torch.device("cpu"):  # the way to set it is a mode
        assert counted.key_of([3]) != counted.key_of([3.0])
        assert torch.device("cuda", 1) in counted.key_of([3])[-1]
    assert bt.jit(lambda x: x + torch.zeros(3))(torch.ones(3)).tolist() == [1.0] * 3


def test_operands_on_two_devices_need_a_place() -> None:
    def f(x):
        with bt.device("gpu"):
            y = x + 1
        return x + y

    with pytest.raises(bt.CompileError, match=r"BT063[^ø]*cpu and cuda:0"):
        bt.jit("cpu")(f).lower(X)


def test_a_call_without_the_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="BT201"):
        bt.jit("cpu")(article)(X, Y, "gpu")


def test_the_block_ends_with_a_return() -> None:
    def inner(x):
        with bt.device("gpu"):
            return x + 1

    def f(x):
        y = inner(x)
        return y.device.type, (x + 1).device.type

    assert bt.jit("cpu")(f).lower(X).lowering.result == ("cuda", "cpu")


def test_device_in_plain_python() -> None:
    with bt.device("cpu"):
        torch.testing.assert_close(torch.arange(3) + 1, torch.tensor([1, 2, 3]))
    assert repr(bt.device("gpu")) == "device('cuda')"
    assert bt.device(torch.device("cuda:1")).device == torch.device("cuda:1")
    for wrong in ("tpu", "cuda:x", "meta", torch.device("mps")):
        with pytest.raises(ValueError, match="unknown device"):
            bt.device(wrong)
    with pytest.raises(TypeError, match="device must be a name"):
        bt.device(0)


def test_a_print_on_another_device_shows_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x):
        with bt.device("cpu"):
            y = x + 1
            print(y)
        return y

    bt.jit("cpu")(f)(X)
    assert capsys.readouterr().out == f"{X + 1}\n"
