"""Items of tuples that no kernel gives are read by kernels, and are no part of them."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import relax

import babytriton as bt
from babytriton.passes import pipeline
from babytriton.targets import tvm_target


def factors(x, y, z):
    a, b = torch.linalg.qr(x)
    c, d = torch.linalg.qr(y)
    e, f = torch.linalg.qr(z)
    return a + b + c + d + e + f


def largest(x, y, z):
    a, i = torch.topk(x, 3)
    b, j = torch.topk(y, 3)
    c, k = torch.topk(z, 3)
    return (a + i) * (b - j) + c * k


def branches(x, y, z):
    a, b = (x, y) if x.sum() > 0 else (x + 1, z)
    c, d = (x, z) if y.sum() > 0 else (y - 1, z * 2)
    return a * b + c * d


def within(x):
    a, b = torch.linalg.qr(x)
    c, d = torch.topk(x, 6)
    return a + b, c + d


def in_branches(x, y, z):
    a, b = within(x) if x.sum() > 0 else (y, z)
    c, d = (y, z) if y.sum() > 0 else within(x + 1)
    return a * b + c * d


def one_of_each(x, y, z):
    u, s, v = torch.linalg.svd(x)
    values, _ = torch.sort(y)
    return u * s + v * values - z


PROGRAMS = (factors, largest, branches, in_branches, one_of_each)


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 6) for _ in range(3)]


def grouped(fn) -> tvm.IRModule:
    lowered = bt.jit("cpu")(fn).lower(*tensors())
    with tvm_target(lowered.target):
        mod = tvm.transform.Sequential(pipeline.LEGALIZE)(lowered.lowering.mod)
        return tvm.transform.Sequential(pipeline.group(pipeline.backend_of("cpu")))(mod)


def groups(mod: tvm.IRModule) -> list[relax.Function]:
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    return [func for func in functions if func.attrs and func.attrs.get("Primitive", False)]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_groups_are_given_tensors(fn) -> None:
    found = groups(grouped(fn))
    assert found
    for group in found:
        assert all(isinstance(param.ty, relax.TensorType) for param in group.params)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_items_are_as_they_were(fn) -> None:
    assert "babytriton.item" not in grouped(fn).script()


@pytest.mark.parametrize("fn", PROGRAMS)
def test_programs_give_what_torch_does(fn) -> None:
    torch.testing.assert_close(bt.jit("cpu")(fn)(*tensors()), fn(*tensors()))
