"""Arrays of other libraries as arguments and results."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import babytriton as bt
from babytriton.config import Config


def scaled(x: Any, y: Any) -> Any:
    return x * y + 1, {"sum": x.sum()}


class Exported:
    """An object with DLPack, and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return self

    @staticmethod
    def from_dlpack(tensor: torch.Tensor) -> Exported:
        return Exported(tensor)


X, Y = np.random.default_rng(0).random((2, 3, 4), dtype=np.float32)


def test_numpy_in_tensors_out() -> None:
    found, named = bt.jit("cpu")(scaled)(X, Y)
    torch.testing.assert_close(found, torch.from_numpy(X * Y + 1))
    torch.testing.assert_close(named["sum"], torch.from_numpy(X).sum())


@pytest.mark.parametrize("out", ["numpy", "same"])
def test_numpy_in_numpy_out(out: str) -> None:
    compiled = bt.jit("cpu", out=out)(scaled)
    for _ in range(3):
        found, named = compiled(X, Y)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, X * Y + 1)
        np.testing.assert_allclose(named["sum"], X.sum(), rtol=1e-6)


def test_the_function_may_come_first() -> None:
    found, _ = bt.jit(scaled, out="numpy")(X, Y)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, X * Y + 1)
    with pytest.raises(ValueError, match="out must be one of"):
        bt.jit(scaled, out="nonsense")


def test_tensors_in_numpy_out() -> None:
    compiled = bt.jit("cpu", out="numpy")(scaled)
    for _ in range(3):
        found, _ = compiled(torch.from_numpy(X), torch.from_numpy(Y))
        np.testing.assert_allclose(found, X * Y + 1)
    same = bt.jit("cpu", out="same")(scaled)
    for _ in range(3):
        assert isinstance(same(torch.ones(3), torch.ones(3))[0], torch.Tensor)


def test_any_object_with_dlpack() -> None:
    x, y = (Exported(torch.from_numpy(part)) for part in (X, Y))
    found, _ = bt.jit("cpu")(scaled)(x, y)
    torch.testing.assert_close(found, torch.from_numpy(X * Y + 1))
    same, _ = bt.jit("cpu", out="same")(scaled)(x, y)
    assert isinstance(same, Exported)
    torch.testing.assert_close(torch.from_dlpack(same), torch.from_numpy(X * Y + 1))


def test_memory_is_shared() -> None:
    def increment(x: Any) -> None:
        x.add_(1)

    x = np.zeros(4, dtype=np.float32)
    bt.jit("cpu")(increment)(x)
    np.testing.assert_array_equal(x, np.ones(4))


@pytest.mark.parametrize(
    "x", [X.T, X[::2], X[:, ::-1], np.broadcast_to(X[0], (3, 4)), np.float64(X), np.asarray(2.0)]
)
def test_however_it_lies(x: Any) -> None:
    given = np.array(x)
    given.flags.writeable = False
    for each in (x, given):
        found = bt.jit("cpu", out="numpy")(lambda x: x * 2)(each)
        np.testing.assert_array_equal(found, x * 2)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "float16"])
def test_dtypes(dtype: str) -> None:
    x = np.arange(5).astype(dtype)
    found = bt.jit("cpu", out="numpy")(lambda x: x | x if dtype == "bool" else x + x)(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x | x if dtype == "bool" else x + x)


def test_copies_are_not_written_to() -> None:
    x = np.zeros(4)[::-1]
    with pytest.raises(ValueError, match="BT118"):
        bt.jit("cpu")(lambda x: x.add_(1))(x)


def test_numbers_of_numpys() -> None:
    found = bt.jit("cpu", out="numpy")(lambda x, a: x * a)(X, np.float64(2))
    np.testing.assert_allclose(found, X * 2)


def test_nested_arguments() -> None:
    compiled = bt.jit("cpu", out="numpy")(lambda w: w["a"][0] + w["b"])
    np.testing.assert_allclose(compiled({"a": [X], "b": Y}), X + Y)


def test_stages() -> None:
    compiled = bt.jit("cpu")(scaled)
    assert "R.multiply" in compiled.lower(X, Y).as_text()
    assert "define" in compiled.source(X, Y)
    found, _ = compiled.lower(X, Y).compile()(X, Y)
    torch.testing.assert_close(found, torch.from_numpy(X * Y + 1))


def test_interpreted_programs_give_arrays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["babytriton.jit"], "CONFIG", Config(interpret=True))
    found, named = bt.jit("cpu", out="numpy")(scaled)(X, y=Y)
    np.testing.assert_allclose(found, X * Y + 1)
    np.testing.assert_allclose(named["sum"], X.sum(), rtol=1e-6)
    several = bt.jit("cpu", out="same")(lambda x, *more, k, **named: x * k + more[0] + named["z"])
    found = several(X, Y, k=2.0, z=X)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, X * 2 + Y + X, rtol=1e-6)


def test_kernels_write_to_arrays() -> None:
    @bt.kernel("cpu")
    def double(x, out):
        for i in range(len(x)):
            out[i] = x[i] * 2

    x, out = X.reshape(-1), np.zeros(X.size, np.float32)
    double(x, out)
    np.testing.assert_allclose(out, x * 2)
    out[:] = 0
    double.lower(x, out).compile()(x, out)
    np.testing.assert_allclose(out, x * 2)
    x.setflags(write=False)
    double(x, out)
    with pytest.raises(ValueError, match="`out`"):
        double(out, x)


def test_kinds_do_not_mix() -> None:
    compiled = bt.jit("cpu", out="numpy")(scaled)
    with pytest.raises(TypeError, match=r"`y`[^`]*torch.Tensor[^`]*numpy.ndarray[^`]*`x`"):
        compiled(X, torch.from_numpy(Y))
    with pytest.raises(TypeError, match=r"BT117"):
        bt.jit("cpu")(lambda w: w[0] + w[1])([torch.from_numpy(X), Y])


def test_out_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="out must be one of 'torch', 'numpy', 'same'"):
        bt.jit("cpu", out="jax")
