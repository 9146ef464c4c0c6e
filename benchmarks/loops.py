"""Microseconds a step of a loop: written out, run as a loop, as a scalar kernel, and torch eager.

    python benchmarks/loops.py

The same recurrence, ``x = x * 0.5 + 1`` on a tensor of 16 float32, four times; then a recurrent
cell whose steps are stacked, of one sequence and of sixteen, one that writes three rows a step, one
that writes a row every fourth step, and one in two loops. Each is checked against Python first.
The timings are taken in turns in one process, and the median is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import babytriton as bt

SIZE = 16
ROUNDS = 15
SHORT = 32  # the most that is written out
LONG = 20_000
FEWEST = 3_200  # steps in one timing, so that a short call is not measured cold
SEQUENCE, INPUTS, UNITS = 200, 32, 64
INNER = 40  # steps of an inner loop, which are too many to be written out


def eager(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = x * 0.5 + 1
    return x


@bt.jit("cpu")
def written_out(x):
    for _ in range(32):
        x = x * 0.5 + 1
    return x


@bt.jit("cpu")
def looped(x):
    for _ in range(20_000):
        x = x * 0.5 + 1
    return x


@bt.jit("cpu")
def until(x):
    steps = 0
    while steps < 20_000:
        x = x * 0.5 + 1
        steps += 1
    return x


@bt.kernel("cpu")
def kernel(x, out):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(20_000):
            v = v * 0.5 + 1
        out[i] = v


def run_kernel(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel(x, out)
    return out


def cell(xs, h, w, u, b):
    outs = []
    for t in range(xs.shape[0]):
        h = torch.tanh(xs[t] @ w + h @ u + b)
        outs.append(h)
    return torch.stack(outs)


def three_rows(xs, h, w):
    out = torch.zeros(SEQUENCE, 3, UNITS)
    for t in range(SEQUENCE):
        for k in range(3):
            h = torch.tanh(xs[t] @ w + h)
            out[t, k] = h
    return out


def every_fourth(xs, h, w):
    out = torch.zeros(SEQUENCE, UNITS)
    for t in range(SEQUENCE):
        h = torch.tanh(xs[t] @ w + h)
        if t % 4 == 1:
            out[t] = h * 2
    return out


def in_two_loops(xs, h, w):
    out = torch.zeros(SEQUENCE, INNER, UNITS)
    for t in range(SEQUENCE):
        for k in range(INNER):
            h = torch.tanh(xs[t] @ w + h * 0.5 + k * 0.01)
            out[t, k] = h
    return out


def arguments(sequences: int) -> tuple[torch.Tensor, ...]:
    """Inputs, first state, weights and bias of the cell."""
    xs, h = torch.randn(SEQUENCE, sequences, INPUTS), torch.zeros(sequences, UNITS)
    return (
        xs,
        h,
        torch.randn(INPUTS, UNITS) * 0.1,
        torch.randn(UNITS, UNITS) * 0.1,
        torch.ones(UNITS),
    )


@dataclass(frozen=True)
class Case:
    """One way to compute something.

    Attributes:
        name: as it is shown.
        run: computes it.
        given: what it is given.
        steps: how many it takes.
    """

    name: str
    run: Callable[..., Any]
    given: tuple[Any, ...]
    steps: int

    def time(self) -> float:
        """Microseconds a step."""
        calls = max(1, FEWEST // self.steps)
        start = time.perf_counter()
        for _ in range(calls):
            self.run(*self.given)
        return (time.perf_counter() - start) / (calls * self.steps) * 1e6


def recurrences() -> list[Case]:
    """The ways to run the recurrence; torch's first."""
    x = torch.rand(SIZE)
    ways: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
        "written out, 32 steps a call": (written_out, SHORT),
        "for, run as a loop": (looped, LONG),
        "while, run as a loop": (until, LONG),
        "scalar kernel": (run_kernel, LONG),
    }
    for run, steps in ways.values():
        torch.testing.assert_close(run(x), eager(x, min(steps, 200)))
    torchs = Case("torch eager", lambda x: eager(x, 2_000), (x,), 2_000)
    return [torchs, *(Case(name, run, (x,), steps) for name, (run, steps) in ways.items())]


def cells(sequences: int) -> list[Case]:
    """The ways to run the cell; torch's first."""
    given, compiled = arguments(sequences), bt.jit("cpu")(cell)
    torch.testing.assert_close(compiled(*given), cell(*given))
    names = f"cell of {sequences}x{UNITS}, torch eager", f"cell of {sequences}x{UNITS}, for"
    return [Case(name, run, given, SEQUENCE) for name, run in zip(names, (cell, compiled))]


def rows() -> list[list[Case]]:
    """Loops that write rows, each as torch and we run it."""
    given = torch.randn(SEQUENCE, INPUTS), torch.zeros(UNITS), torch.randn(INPUTS, UNITS) * 0.1
    found = []
    for fn, steps in ((three_rows, 3), (every_fourth, 1), (in_two_loops, INNER)):
        compiled, name = bt.jit("cpu")(fn), fn.__name__.replace("_", " ")
        torch.testing.assert_close(compiled(*given), fn(*given))
        names = f"{name}, torch eager", f"{name}, for"
        ways = zip(names, (fn, compiled))
        found.append([Case(name, run, given, SEQUENCE * steps) for name, run in ways])
    return found


def main() -> None:
    groups = [recurrences(), cells(1), cells(16), *rows()]
    times: dict[str, list[float]] = {case.name: [] for group in groups for case in group}
    for _ in range(ROUNDS):
        for group in groups:
            for case in group:
                times[case.name].append(case.time())
    print(f"{'':32}{'us a step':>12}{'eager / ours':>15}")
    for torchs, *ours in groups:
        for case in (torchs, *ours):
            first, median = (statistics.median(times[x.name]) for x in (torchs, case))
            print(f"{case.name:32}{median:12.4f}{first / median:15.1f}")


if __name__ == "__main__":
    main()
