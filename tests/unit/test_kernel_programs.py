"""Kernels give what the same Python gives undecorated, on the CPU and for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import babytriton as bt
from tests.conformance.gpu import TARGET, call_kernel
from tests.emulator import emulator
from tests.emulator.emulator import ORDERS, Order, thread_order
from tests.unit.kernel_programs import PROGRAMS, Program

COMPILED = [
    *("matmul", "gemv", "softmax", "stencil", "histogram", "mandelbrot", "normalize"),
    *("first_large", "column_scan", "csr", "masked_sum", "extremes", "integer_division"),
    *("python_numbers", "dtypes", "helpers", "early_return", "with_nan"),
]
SOME = [program for program in PROGRAMS if str(program) in COMPILED]


@pytest.mark.parametrize("bounds_check", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_cpu_gives_what_python_gives(program: Program, bounds_check: bool) -> None:
    arguments = program.copies()
    bt.kernel("cpu", bounds_check=bounds_check)(program.fn)(*arguments)
    for given, expected in zip(arguments, program.expected()):
        torch.testing.assert_close(given, expected, equal_nan=True)


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Iterator[Order]:
    with thread_order(request.param, seed=7):
        yield request.param


@pytest.mark.skipif(emulator.available_gpu() is None, reason="no GPU, and no emulator")
@pytest.mark.parametrize("program", SOME, ids=str)
def test_gpu_gives_what_python_gives(program: Program, order: Order) -> None:
    compiled = bt.kernel(TARGET)(program.fn).lower(*program.arguments).compile()
    given = call_kernel(compiled, program.copies())
    for found, expected in zip(given, program.expected()):
        torch.testing.assert_close(found, expected, equal_nan=True)


def squared(x):
    return x * x  # inlined


@bt.kernel(target="gpu")
def norms(x, out):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += squared(x[i, j])
        out[i] = total


def test_kernels_are_headed_by_their_lines() -> None:
    compiled = norms.lower(torch.ones(40, 70), torch.ones(40)).compile()
    first, name = norms.fn.__code__.co_firstlineno, "// test_kernel_programs.py"
    assert compiled.source("cuda").splitlines()[:4] == [
        f"{name}:{first + 3}  total = 0.0",
        f"{name}:{first + 5}  total += squared(x[i, j])",
        f"{name}:{first + 6}  out[i] = total",
        "// x: float32[40, 70], out: float32[40]",
    ]
