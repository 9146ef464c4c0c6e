"""Kernels as built-in functions: what they are handed, what they raise, and what they keep."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref

import pytest
import torch
import tvm_ffi

import babytriton as bt
from babytriton.plan import Kind
from babytriton.runtime import builtin as builtin_module
from babytriton.runtime.builtin import builtin


def recorder(*kinds: Kind):
    """A function of arguments of some kinds, and a list of what it was called with."""
    calls: list[tuple] = []
    return builtin(tvm_ffi.convert(lambda *values: calls.append(values)), kinds), calls


def test_tensors_are_where_their_elements_begin():
    x = torch.arange(12.0).view(3, 4)
    call, calls = recorder(Kind.ADDRESS, Kind.ADDRESS)
    assert call(x, x[1, 2:]) is None
    assert calls == [(x.data_ptr(), x.data_ptr() + 6 * 4)]


def test_numbers():
    call, calls = recorder(Kind.FLOAT, Kind.INTEGER, Kind.FLOAT, Kind.INTEGER)
    call(2.5, -(2**63), 3, 2**63 - 1)
    assert calls == [(2.5, -(2**63), 3.0, 2**63 - 1)]


def test_tensors_with_sizes():
    shapes: list[tuple[int, ...]] = []
    call = builtin(tvm_ffi.convert(lambda x: shapes.append(tuple(x.shape))), [Kind.TENSOR])
    for shape in ((2, 3), (), (5, 0, 1)):
        call(torch.zeros(shape))
    assert shapes == [(2, 3), (), (5, 0, 1)]


def test_errors_of_kernels():
    def fail(_):
        raise ValueError("no such number")

    call = builtin(tvm_ffi.convert(fail), [Kind.INTEGER])
    for _ in range(3):
        with pytest.raises(ValueError, match="no such number"):
            call(1)


@pytest.mark.parametrize("kind", [Kind.ADDRESS, Kind.FLOAT, Kind.INTEGER])
def test_arguments_of_other_kinds(kind):
    call, calls = recorder(kind)
    with pytest.raises((TypeError, RuntimeError)):
        call("x")
    assert not calls


@pytest.mark.parametrize("args", [(), (1.0,), (1.0, 2, 3)])
def test_other_numbers_of_arguments(args):
    call, calls = recorder(Kind.FLOAT, Kind.INTEGER)
    with pytest.raises(TypeError):
        call(*args)
    assert not calls


def test_nothing_is_kept_but_the_kernel():
    class Owner:
        pass

    owner = Owner()
    function = tvm_ffi.convert(lambda *_, owner=owner: None)
    alive = weakref.ref(owner)
    call = builtin(function, [Kind.ADDRESS, Kind.FLOAT])
    del function, owner
    gc.collect()
    assert alive() is not None
    x, number = torch.zeros(2), 2.5
    before = [sys.getrefcount(each) for each in (x, number, call)]
    for _ in range(100):
        call(x, number)
    assert [sys.getrefcount(each) for each in (x, number, call)] == before
    del call
    gc.collect()
    assert alive() is None


def test_modes_are_not_asked_where_tensors_lie():
    class Counting(torch.overrides.TorchFunctionMode):
        asked = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.asked += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    call, calls = recorder(Kind.ADDRESS)
    with Counting():
        call(x)
    assert Counting.asked == 0
    assert calls == [(x.data_ptr(),)]


def shifted(x, y, scale: float):
    return x * scale + y


@pytest.mark.parametrize("dynamic", [False, True])
def test_without_a_view_of_tensors_tvm_calls(dynamic, monkeypatch):
    monkeypatch.setattr(builtin_module, "_code", lambda: None)
    function = bt.jit("cpu", dynamic=dynamic)(shifted)
    x, y = torch.randn(2, 5, 3)
    for _ in range(3):
        torch.testing.assert_close(function(x, y, 2.0), shifted(x, y, 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_calls_with_parts_of_tensors(dynamic, dtype):
    function = bt.jit("cpu", dynamic=dynamic)(shifted)
    for n in (5, 5, 5, 7):
        x = torch.arange(2 * n * 3).view(2, n, 3).to(dtype)
        for args in ((x[0], x[1], 2.0), (x[1], x[0], 3.0)):
            torch.testing.assert_close(function(*args), shifted(*args))


def test_kernels_of_a_gpu_are_launched_on_its_current_stream(monkeypatch):
    """As torch tells it of the GPU that a tensor is on; later calls of others have theirs again."""
    gpu, asked, seen = tvm_ffi.device("cuda", 1), [], []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_int64 * 6))
    def view(_, tensor):
        tensor[0][:] = [64, 2 | 1 << 32, 0, 0, 0, 0]  # where it lies, and on which GPU
        return 0

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def stream(kind, number, found):
        asked.append((kind, number))
        found[0] = 4096
        return 0

    def kernel(n, tensor):
        seen.append((n, tvm_ffi.get_raw_stream(gpu)))
        if n < 0:
            raise ValueError("no such number")

    table = builtin_module._exchange()
    assert table is not None
    own = type(table).from_buffer_copy(table)
    own.tensor, own.stream = (ctypes.cast(f, ctypes.c_void_p).value for f in (view, stream))
    monkeypatch.setattr(builtin_module, "_exchange", lambda: own)
    monkeypatch.setattr(builtin_module, "_code", builtin_module._code.__wrapped__)
    call = builtin(tvm_ffi.convert(kernel), [Kind.INTEGER, Kind.ADDRESS])
    call(5, torch.zeros(1))
    with pytest.raises(ValueError, match="no such number"):
        call(-5, torch.zeros(1))
    assert seen == [(5, 4096), (-5, 4096)]
    assert asked == [(2, 1), (2, 1)]
    assert tvm_ffi.get_raw_stream(gpu) == 0
