"""Memory between the kernels of a function: torch's on a GPU, and given back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import tvm_ffi

import babytriton as bt
from babytriton.plan import ALLOCATE, FREE
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def total(x):
    return x.sum()


def column_norms(x):
    return torch.linalg.vector_norm(x, dim=0)


def shares(x):
    return torch.softmax(x, -1), x.amax()


FUNCTIONS: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
    (total, (100, 1000)),
    (column_norms, (100000, 40)),
    (shares, (2, 70001)),
]
each_function = pytest.mark.parametrize(
    ("fn", "shape"), FUNCTIONS, ids=lambda x: getattr(x, "__name__", "-")
)


@pytest.fixture
def allocated() -> Iterator[tuple[list[int], list[int]]]:
    """The bytes that kernels are given, and what is still there of these."""
    allocate, free = tvm_ffi.get_global_func(ALLOCATE), tvm_ffi.get_global_func(FREE)
    given: list[int] = []
    held: list[int] = []

    def counted(device: int, size: int) -> int:
        given.append(size)
        held.append(allocate(device, size))
        return held[-1]

    def freed(address: int) -> None:
        held.remove(address)
        free(address)

    tvm_ffi.register_global_func(ALLOCATE, counted, override=True)
    tvm_ffi.register_global_func(FREE, freed, override=True)
    yield given, held
    tvm_ffi.register_global_func(ALLOCATE, allocate, override=True)
    tvm_ffi.register_global_func(FREE, free, override=True)


@needs_gpu
@each_function
def test_it_is_allocated_and_freed(
    fn: Callable[..., Any], shape: tuple[int, ...], allocated: tuple[list[int], list[int]]
) -> None:
    given, held = allocated
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    for _ in range(2):
        before = len(given)
        found, exact = gpu.call(compiled, (x,)), fn(x.double())
        torch.testing.assert_close(
            found, torch.utils._pytree.tree_map(lambda y: y.float(), exact), rtol=1e-4, atol=1e-4
        )
        assert len(given) > before
        assert not held
    assert all(size > 0 for size in given)


@each_function
def test_none_is_of_the_host(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """Code of the host that launches keeps no array of its own that kernels would be given."""
    host = bt.jit(gpu.TARGET)(fn).lower(torch.empty(shape)).compile().source("llvm")
    assert ALLOCATE in host
    arrays = re.findall(r"alloca \[\d+ x ([^\]]+)\]", host)
    assert all(element == "%0" for element in arrays)  # arguments of calls


@needs_gpu
def test_what_the_allocator_says_is_passed_on() -> None:
    allocate = tvm_ffi.get_global_func(ALLOCATE)

    def full(device: int, size: int) -> int:
        raise torch.OutOfMemoryError("no memory is left")

    compiled = bt.jit(gpu.TARGET)(total).lower(torch.empty(100, 1000)).compile()
    tvm_ffi.register_global_func(ALLOCATE, full, override=True)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="no memory is left"):
            gpu.call(compiled, (torch.ones(100, 1000),))
    finally:
        tvm_ffi.register_global_func(ALLOCATE, allocate, override=True)
