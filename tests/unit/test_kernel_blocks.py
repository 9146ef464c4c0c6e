"""Which loops of a kernel run in any order, and which rules schedule them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import babytriton as bt
from tests.conformance.gpu import TARGET
from tests.unit import kernel_programs as programs
from tests.unit.kernel_programs import PROGRAMS, Program, ints, rand, zeros

WHILE = "while"
SEQUENTIAL = ""


def axes(fn: Callable[..., None], *arguments: Any) -> list[str]:
    """The loops of each block: ``S`` may run in any order, ``R`` reduces."""
    lowered = bt.kernel("cpu")(fn).lower(*arguments)
    found = []
    for line in lowered.as_text().splitlines():
        if 'T.sblock("' in line and "root" not in line:
            found.append("")
        elif "T.axis.remap" in line:
            found[-1] += line.split('"')[1]
        elif "T.axis.spatial" in line:
            found[-1] += "S"
        elif "T.axis.reduce" in line:
            found[-1] += "R"
    return found


def program(name: str) -> Program:
    return next(program for program in PROGRAMS if str(program) == name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", ["S"]),
        ("matmul", ["SSR"]),
        ("flat_matmul", ["SSR", "SS"]),
        ("gemv", ["SR", "S"]),
        ("softmax", ["SR", "SR", "SS"]),
        ("stencil", ["SS"]),
        ("gather", ["SS"]),
        ("flattened", ["SS"]),
        ("masked_sum", ["SR", "S"]),
        ("mandelbrot", ["SS"]),
        ("first_large", ["S"]),
        ("column_scan", ["S"]),
        ("cumulative", ["S"]),
        ("triangular", ["S"]),
        ("csr", ["S"]),
        ("histogram", [SEQUENTIAL]),
        ("bubble_sort", [SEQUENTIAL]),
    ],
)
def test_loops(name: str, expected: list[str]) -> None:
    found = program(name)
    assert axes(found.fn, *found.arguments) == expected


def shifted(x):
    for i in range(1, len(x)):
        x[i] = x[i - 1]


def collapsed(x, out):
    for i in range(len(x)):
        out[i // 2] = x[i]


def overlapping(x, out):
    for i in range(4):
        for j in range(4):
            out[i + j] = x[i, j]


def strided(x, out):
    for i in range(4):
        for j in range(4):
            out[4 * i + j] = x[i, j]


def too_close(x, out):
    for i in range(4):
        for j in range(5):
            out[4 * i + j] = x[i, j]


def diagonal(x, out):
    for i, j in bt.grid(4, 4):
        out[i, i + j] = x[i, j]


def constant_place(x, out):
    for i in range(len(x)):
        out[0] = x[i]


def carried(x, out):
    last = 0.0
    for i in range(len(x)):
        out[i] = last
        last = x[i] + 0.0


def kept(x, out):
    last = 0.0
    for i in range(len(x)):
        last = x[i] * 2
        out[i] = last
    out[0] = last


def conditional_private(x, out):
    y = 0.0
    for i in range(len(x)):
        if x[i] > 0:
            y = x[i] * 2
        out[i] = y


def reads_next(x):
    for i in range(len(x) - 1):
        x[i] = x[i + 1]


def reads_other(x, y):
    for i in range(1, len(x)):
        y[i] = x[i - 1]
        x[i] = y[i] + 1


def reads_the_sum(x, out):
    for i in range(len(x)):
        total = 0.0
        for j in range(4):
            total += x[j] + total
        out[i] = total


def moving_target(places, x, out):
    for i in range(len(x)):
        out[places[i]] = x[i]


def broken_accumulator(x, out):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        out[i] = total


@pytest.mark.parametrize(
    ("fn", "arguments", "expected"),
    [
        (shifted, (rand(9),), [SEQUENTIAL]),
        (reads_next, (rand(9),), [SEQUENTIAL]),
        (reads_other, (rand(9), rand(9)), [SEQUENTIAL]),
        (collapsed, (rand(8), zeros(4)), [SEQUENTIAL]),
        (overlapping, (rand(4, 4), zeros(7)), None),
        (strided, (rand(4, 4), zeros(16)), ["SS"]),
        (too_close, (rand(4, 5), zeros(17)), None),
        (diagonal, (rand(4, 4), zeros(4, 7)), ["SS"]),
        (constant_place, (rand(8), zeros(1)), [SEQUENTIAL]),
        (carried, (rand(8), zeros(8)), [SEQUENTIAL]),
        (kept, (rand(8), zeros(8)), None),
        (conditional_private, (rand(8), zeros(8)), [SEQUENTIAL]),
        (reads_the_sum, (rand(8), zeros(8)), ["S"]),
        (moving_target, (ints(0, 8, 8), rand(8), zeros(8)), [SEQUENTIAL]),
        (broken_accumulator, (rand(8), zeros(8)), [SEQUENTIAL]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_dependences_are_kept(
    fn: Callable[..., None], arguments: tuple[Any, ...], expected: list[str] | None
) -> None:
    one = Program(fn, arguments)
    given = one.copies()
    bt.kernel("cpu")(fn)(*given)
    for found, wanted in zip(given, one.expected()):
        torch.testing.assert_close(found, wanted)
    if expected is not None:
        assert axes(fn, *arguments) == expected


def rules(name: str, target: bt.Target | str) -> set[str]:
    found = program(name)
    mod = bt.kernel(target)(found.fn).lower(*found.arguments).schedule().mod
    return {str(func.attrs["babytriton.rule"]) for _, func in mod.functions_items()}


@pytest.mark.parametrize("target", ["cpu", TARGET], ids=str)
@pytest.mark.parametrize(
    ("name", "rule"),
    [("matmul", "Matmul"), ("softmax", "Rowwise"), ("gemv", "Rowwise"), ("stencil", "Elementwise")],
)
def test_the_rules_of_operators_schedule_kernels(
    name: str, rule: str, target: bt.Target | str
) -> None:
    assert rules(name, target) == {rule}


def test_large_loops_run_on_all_threads() -> None:
    big = torch.zeros(300, 400)
    text = bt.kernel("cpu")(programs.stencil).lower(big, big).schedule().as_text()
    assert "T.parallel" in text
    text = bt.kernel("cpu")(programs.mandelbrot).lower(big).schedule().as_text()
    assert "T.parallel" in text
    text = bt.kernel(TARGET)(programs.mandelbrot).lower(big).schedule().as_text()
    assert 'thread="blockIdx.x"' in text
    assert 'thread="threadIdx.x"' in text


def test_sequential_loops_run_in_one_thread_of_a_gpu() -> None:
    text = bt.kernel(TARGET)(programs.histogram).lower(ints(0, 4, 9), zeros(4)).schedule().as_text()
    assert 'T.thread_binding(1, thread="threadIdx.x")' in text.replace("T.int64(1)", "1")
