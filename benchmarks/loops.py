"""Microseconds a step of a loop: written out, run as a loop, as a scalar kernel, and torch eager.

    python benchmarks/loops.py

The same recurrence, ``x = x * 0.5 + 1`` on a tensor of 16 float32, four times. Each is checked
against Python first. The timings are taken in turns in one process, and the median is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import babytriton as bt

SIZE = 16
ROUNDS = 15
SHORT = 32  # the most that is written out
LONG = 20_000
FEWEST = 3_200  # steps in one timing, so that a short call is not measured cold


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


CASES: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor], int], ...] = (
    ("torch eager", lambda x: eager(x, 2_000), 2_000),
    ("written out, 32 steps a call", written_out, SHORT),
    ("for, run as a loop", looped, LONG),
    ("while, run as a loop", until, LONG),
    ("scalar kernel", run_kernel, LONG),
)


def main() -> None:
    x = torch.rand(SIZE)
    times: dict[str, list[float]] = {name: [] for name, _, _ in CASES}
    for _, run, steps in CASES:
        torch.testing.assert_close(run(x), eager(x, min(steps, 200)))
    for _ in range(ROUNDS):
        for name, run, steps in CASES:
            calls = max(1, FEWEST // steps)
            start = time.perf_counter()
            for _ in range(calls):
                run(x)
            times[name].append((time.perf_counter() - start) / (calls * steps) * 1e6)
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"{'':32}{'us a step':>12}{'eager / ours':>15}")
    for name, median in medians.items():
        print(f"{name:32}{median:12.4f}{medians['torch eager'] / median:15.1f}")


if __name__ == "__main__":
    main()
