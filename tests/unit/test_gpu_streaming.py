"""Loads on GPUs by which nothing stays in caches: of what is large and read once."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.passes.gpu import streaming
from babytriton.runtime import cuda
from babytriton.stages import Compiled
from tests.conformance import gpu
from tests.emulator import emulator

TARGET = bt.Target("cuda", arch="sm_90")

needs_compiler = pytest.mark.skipif(
    not cuda.has_compiler(), reason="no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc"
)
needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def row_sums(x):
    return x.sum(-1)


def total(x):
    return x.sum()


def column_maxima(x):
    return x.amax(0)


def variances(x):
    return x.var(-1)


def cross_entropy(x):
    labels = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    return F.cross_entropy(x, labels, reduction="none")


def softmax(x):
    return torch.softmax(x, -1)


def doubles_and_sums(x):
    y = x * 2
    return y, y.sum(-1)


def part(x):
    return x[:, :256].sum(-1)


def variances_of_columns(x):
    return x.var(0)


SMALL_RESULTS = [row_sums, total, column_maxima, variances, cross_entropy]


def compiled(fn: Callable, *shape: int, dtype: torch.dtype = torch.float32) -> Compiled:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return bt.jit(target=TARGET)(fn).lower(x).compile()


@pytest.mark.parametrize("fn", SMALL_RESULTS)
def test_what_is_large_is_streamed(fn) -> None:
    source = compiled(fn, 4096, 4096).source("cuda")
    assert re.search(r"=\s+__ldcs\(\(const float4\*\)\(x \+ ", source)
    assert not re.search(r"\*\(const float4\*\)\(x |\bx\[", source)


def test_what_takes_a_good_part_of_a_cache_is_streamed() -> None:
    assert "__ldcs" in compiled(row_sums, 2048, 1024).source("cuda")


@needs_compiler
@pytest.mark.parametrize("fn", [row_sums, total, column_maxima])
def test_machine_code(fn) -> None:
    assert "LDG.E.EF.128" in compiled(fn, 4096, 4096).source("sass")


def products_added_down(x):
    y = x.float()
    return (y * y).sum(1)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_four_halves_are_streamed_as_words(dtype) -> None:
    program = compiled(products_added_down, 8, 4096, 1152, dtype=dtype)
    assert re.search(r"\(uint2\*\)\w+ =\s+__ldcs\(\(const uint2\*\)\(x \+ ", program.source("cuda"))
    assert "LDG.E.EF.64" in program.source("sass")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_values_of_four_halves(dtype, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "LARGE", 1)
    x = torch.randn(2, 300, 132, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = bt.jit(target=gpu.TARGET)(products_added_down).lower(x).compile()
    assert "__ldcs((const uint2*)" in program.source("cuda")
    expected = (x.double() ** 2).sum(1)
    torch.testing.assert_close(gpu.call(program, (x,)).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (row_sums, (2048, 1000)),  # takes little of a cache
        (softmax, (4096, 4096)),  # writes as much as it reads
        (doubles_and_sums, (4096, 4096)),  # the same
        (part, (4096, 4096)),  # reads little of it
        (variances_of_columns, (4096, 4096)),  # a row of it is read again and again
    ],
)
def test_what_is_not_streamed(fn, shape) -> None:
    assert "__ldcs" not in compiled(fn, *shape).source("cuda")


def test_nothing_of_unknown_size_is_streamed() -> None:
    x = torch.empty(4096, 4096, device="meta")
    program = bt.jit(target=TARGET, dynamic=True)(row_sums).lower(x).compile()
    assert "__ldcs" not in program.source("cuda")


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]


@needs_gpu
@pytest.mark.parametrize("shape", [(64, 1024), (7, 1003), (300, 40), (2, 40001)])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_values(shape, dtype, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "LARGE", 1)
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    for fn in (row_sums, total):
        program = bt.jit(target=gpu.TARGET)(fn).lower(x).compile()
        found, exact = gpu.call(program, (x,)), fn(x.double() if x.is_floating_point() else x)
        is_small = 8 * found.nbytes <= x.nbytes
        assert ("__ldcs" in program.source("cuda")) == (is_small and dtype != torch.bool)
        if not x.is_floating_point():
            assert torch.equal(found, exact)
            continue
        computed = torch.float64 if dtype == torch.float64 else torch.float32
        atol = torch.finfo(computed).eps * x.double().abs().sum().item()
        rtol = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=atol)


@needs_compiler
@pytest.mark.parametrize("shape", [(64, 1024), (7, 1003), (2, 40001)])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_compiler_takes_all_dtypes(shape, dtype, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "LARGE", 1)
    for fn in (row_sums, total):
        assert compiled(fn, *shape, dtype=dtype).launches
