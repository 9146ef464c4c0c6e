"""Programs that read and write memory of the caller's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm_ffi

import babytriton as bt
from babytriton.buffers import Differentiable, Program, Saved, callback, leaves, target_on
from babytriton.frontend.program import Cotangent

ones = torch.ones


@bt.jit
def several(x, y):
    z = torch.sin(x) @ y
    return z, x, z * 2, z


@bt.jit
def scaled(x, y, by=2.0):
    return torch.tanh(x * by) * y


@bt.jit
def through_torch(x):
    return torch.special.i1e(x) * 2, torch.argsort(x)


@bt.jit
def drawing(x):
    return torch.nn.functional.fractional_max_pool2d(x, 2, output_size=2)


def program(function: Any, *args: Any) -> Program:
    with torch.no_grad():
        return Program.of(function.lower(*args), {}, records=False)


def run(program: Program, *tensors: torch.Tensor) -> None:
    program.run(*map(tvm_ffi.from_dlpack, tensors))


def places(program: Program, *batch: int) -> list[torch.Tensor]:
    return [torch.empty((*batch, *x.sizes), dtype=x.dtype) for x in program.results]


def test_outputs_are_written_where_they_belong() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    found = program(several, x, y)
    out = places(found)
    run(found, x, y, *out)
    filled = found.filled(out, lambda key, read: (x, y)[key[1]])
    torch.testing.assert_close(filled, several.fn(x, y))
    assert filled[1] is x


def test_only_some_outputs() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    found = program(several, x, y).with_outputs((1, 0))
    out = places(found)
    run(found, x, y, *out)
    torch.testing.assert_close(out, [several.fn(x, y)[2], several.fn(x, y)[0]])


def test_batches() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(1, 4, 5)
    found = program(several, x[0], y[0])
    out = places(found, 2)
    run(found, x, y, *out)
    torch.testing.assert_close(out[0], torch.sin(x) @ y)


def test_values_of_its_own_and_other_dtypes() -> None:
    x, y = torch.randn(5), torch.randn(5)
    lowered = scaled.lower(x, y)
    own = {("leaf", 2): lambda: 3.0}
    found, out = Program.of(lowered, own, records=False), torch.empty(5)
    assert leaves(lowered, [x, y, 2.0]) == [x, y, 2.0]
    run(found, x, y, out)
    torch.testing.assert_close(out, torch.tanh(x * 3) * y)
    assert found.digest("3") != found.digest("2")

    found, narrow = program(through_torch, x), torch.empty(5, dtype=torch.int32)
    run(found, x, out, narrow)
    torch.testing.assert_close((out, narrow.long()), through_torch.fn(x))
    halves = torch.empty(5, 2, dtype=torch.uint32)
    run(found, x, out, halves)
    torch.testing.assert_close(halves.view(torch.int64)[:, 0], torch.argsort(x))
    assert found.is_pure, "torch says that it draws no random numbers"
    images = torch.randn(1, 1, 5, 5)
    assert not program(drawing, images).is_pure, "what torch says nothing of may draw some"


def test_ways_forward_and_back() -> None:
    x, y = torch.randn(5, requires_grad=True), torch.randn(5)
    lowered = scaled.lower(x, y)
    found = Differentiable(lowered, {("leaf", 2): lambda: 2.0})
    forward, back = places(found.forward), places(found.backward)
    run(found.forward, x.detach(), y, *forward)
    grad = torch.randn(5)
    given: list[Any] = []
    for source in found.sources:
        if isinstance(source, Saved):
            given.append(forward[source.number])
        else:
            given.append(grad if isinstance(source, Cotangent) else (x.detach(), y)[source[1]])
    run(found.backward, *given, *back)
    number = found.gradients["leaf", 0]
    assert number is not None
    (expected,) = torch.autograd.grad(scaled.fn(x, y), x, grad)
    torch.testing.assert_close(back[number], expected)
    assert (found.order, found.next.order) == (0, 1)
    assert found.next_results == {("leaf", 0): 0}


WEIGHT = torch.ones(5, requires_grad=True)


def test_captured_tensors_have_no_gradient() -> None:
    weighted = bt.jit("cpu")(lambda x: x * WEIGHT)
    found = Differentiable(weighted.lower(ones(5, requires_grad=True)), {})
    assert list(found.gradients) == [("leaf", 0)]
    assert len(found.backward.results) == 1


SCALE = 2.0


def test_what_it_captures_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(bt.jit("cpu")(lambda x: x * SCALE), ones(3))
    assert found.is_current
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not found.is_current
    with pytest.raises(ValueError, match="SCALE"):
        run(found, ones(3), ones(3))


def test_targets() -> None:
    assert target_on("f", None, "cuda") == bt.Target("cuda")
    assert target_on("f", bt.Target("cuda", "sm_90"), "cuda").arch == "sm_90"
    with pytest.raises(RuntimeError, match=r"error\[BT133\]"):
        target_on("f", bt.Target("cpu"), "cuda")


def test_callbacks_get_tensors_of_tvm_ffi() -> None:
    seen: list[Any] = []
    callback(lambda number, *tensors: seen.extend([number, *tensors]))(3, ones(2))
    assert seen[0] == 3
    assert isinstance(seen[1], tvm_ffi.Tensor)
