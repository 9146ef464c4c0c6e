"""Kernels for the GPU against torch, torch.compile and Triton, and against a copy of memory.

    python -m benchmarks.gpu [PART ...] [--results FOLDER] [--jobs N]
    python -m benchmarks.gpu --emulated

Every result is checked against torch in float64 before anything is timed. Ways to compute the same
take turns; a timing is of the GPU alone, with its cache cleared before, and the table has medians.
Several processes compile and check; when all are done, they time their cases, one at a time.
Bandwidth counts each operand once, and "of a copy" is the share of what torch's copy of a tensor
reaches that moves as many bytes, timed in turns with it. "fused" is a product in a kernel of ours,
where "ours" leaves it to torch's library.

Without a GPU, ``--emulated`` runs the same cases in small on the tests' emulator, without times.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import queue
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

import babytriton as bt
from benchmarks.measure import check

ROUNDS = 25
PEERS = ("eager", "compile", "triton", "fused")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-6

# Bytes that are cleared before each timing: more than any GPU's cache.
CLEARED = 256 << 20

# Cycles that a GPU waits, half a millisecond: longer than any caller takes.
WAIT = 1_000_000

# What is asked of kernels that go through memory once, from so many bytes on; and of a call.
ONE_PASS, LARGE = 0.9, 64 << 20
CALL = 6e-6

SIZES = ((4096, 1024), (4096, 4096), (16384, 4096), (64, 32768), (7, 1000003), (4096, 1003))
SMALL = ((4, 64), (2, 1003), (70, 33))


def add(x, y):
    return x + y


def gelu_bias(x, w):
    y = x + w
    return torch.sigmoid(1.702 * y) * y


def swiglu(x, y):
    return F.silu(x) * y


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS) * w).to(x.dtype)


def cross_entropy(x, labels):
    return F.cross_entropy(x, labels, reduction="none")


def row_sums(x):
    return x.sum(-1)


def column_sums(x):
    return x.sum(0)


def total(x):
    return x.sum()


def running_sums(x):
    return x.cumsum(-1)


def column_variances(x):
    return x.var(0)


def transpose(x):
    return x.T.contiguous()


def gemv(v, m):
    return F.linear(v, m)


def dense(x, m, c):
    return F.gelu(F.linear(x, m, c))


def returns(x):
    out = torch.empty_like(x)
    running = torch.zeros_like(x[0])
    for t in reversed(range(x.shape[0])):
        running = x[t] + 0.75 * running
        out[t] = running
    return out


# What each function takes: x and y are matrices, w and b rows, v a row, m a matrix of weights and c
# a number for each of its rows.
OPERANDS: dict[Callable[..., torch.Tensor], str] = {
    add: "xy",
    gelu_bias: "xw",
    swiglu: "xy",
    softmax: "x",
    layer_norm: "xwb",
    rms_norm: "xw",
    cross_entropy: "xl",
    row_sums: "x",
    column_sums: "x",
    total: "x",
    running_sums: "x",
    column_variances: "x",
    transpose: "x",
    gemv: "vm",
    dense: "xmc",
    returns: "x",
}

# Loops over rows, and their sizes. torch.compile would write thousands of steps out, and takes
# minutes for a hundred.
LOOPS = (returns,)
LOOP_SIZES = ((128, 4096), (128, 65536), (1000, 1024))


# Those that do not go through memory once: some read a part of it, some read it again.
OTHERS = (cross_entropy, column_variances, dense)

# Those whose results are small beside what they add up.
SUMS = (total, row_sums, column_sums)


@dataclass(frozen=True)
class Case:
    """A function and what it is called with.

    Attributes:
        fn: what is computed.
        rows: of the matrix.
        columns: of the matrix.
        dtype: of the numbers.
    """

    fn: Callable[..., torch.Tensor]
    rows: int
    columns: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """As the table shows it."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.fn.__name__} {self.rows}x{self.columns} {dtype}"

    def arguments(self, device: str) -> tuple[torch.Tensor, ...]:
        """Normal numbers, weights scaled by the length of a row, and labels that count."""
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        made = {
            "x": lambda: normal(self.rows, self.columns),
            "y": lambda: normal(self.rows, self.columns),
            "w": lambda: normal(self.columns),
            "b": lambda: normal(self.columns),
            "v": lambda: normal(1, self.columns),
            "m": lambda: normal(self.rows, self.columns) / self.columns**0.5,
            "c": lambda: normal(self.rows),
        }
        labels = torch.arange(self.rows) * 7 % self.columns
        operands = [
            labels if name == "l" else made[name]().to(self.dtype) for name in OPERANDS[self.fn]
        ]
        return tuple(x.to(device) for x in operands)


def cases(sizes: Sequence[tuple[int, int]], loop_sizes: Sequence[tuple[int, int]]) -> list[Case]:
    """All functions in all sizes and dtypes."""
    return [
        Case(fn, rows, columns, dtype)
        for fn in OPERANDS
        for rows, columns in (loop_sizes if fn in LOOPS else sizes)
        for dtype in DTYPES
    ]


@dataclass(frozen=True)
class Row:
    """What was measured of a case.

    Attributes:
        case: what.
        seconds: by way.
        bytes: of all operands and the result.
    """

    case: Case
    seconds: Mapping[str, float]
    bytes: int

    @property
    def share(self) -> float:
        """Of the bandwidth that a copy of as many bytes reaches."""
        return self.seconds["copy"] / self.seconds["ours"]

    def cells(self) -> list[str]:
        """As a line of the table."""
        share, ours = self.share, self.seconds["ours"]
        is_asked = self.bytes >= LARGE and self.case.fn not in OTHERS
        text = f"{share:.2f}" + (f" ({ONE_PASS:.2f})" if is_asked else "")
        cells = [self.case.name, f"{ours * 1e6:.4g}", f"{self.bytes / ours / 1e9:.0f}"]
        cells.append(f"**{text}**" if is_asked and share < ONE_PASS else text)
        for peer in PEERS:
            ratio = self.seconds[peer] / ours if peer in self.seconds else None
            shown = "" if ratio is None else f"{ratio:.2f}"
            is_missed = peer == "compile" and ratio is not None and ratio < 1
            cells.append(f"**{shown}**" if is_missed else shown)
        return cells


def seconds_of(ways: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians of the GPU's time for each way, which take turns.

    The GPU waits before each until the caller has asked for all of it, however slow that is.
    """
    clear = torch.empty(CLEARED, dtype=torch.uint8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 3):
        for name, way in ways.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(WAIT)
            clear.zero_()
            start.record()
            way()
            end.record()
            end.synchronize()
            if turn >= 3:  # those before wake the GPU up
                found[name].append(start.elapsed_time(end) / 1000)
    return {name: statistics.median(times) for name, times in found.items()}


def copying(moved: int) -> Callable[[], torch.Tensor]:
    """A copy that reads and writes so many bytes together."""
    x = torch.empty(max(1, moved // 2), dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


def copy_bandwidth() -> float:
    """Bytes a second that are read and written while a large tensor is copied."""
    moved = 2 << 30
    return moved / seconds_of({"copy": copying(moved)})["copy"]


def call_overhead() -> dict[str, float]:
    """Seconds of the caller's time for a call with three tensors of 64 numbers.

    And for a launch alone: of a kernel of torch's that takes a number.
    """
    x, y, z = (torch.randn(64, device="cuda") for _ in range(3))

    def three(a, b, c):
        return a * b + c

    ways: dict[str, Callable[..., Any]] = {"ours": bt.jit("gpu")(three), "eager": three}
    ways["compile"] = torch.compile(three)
    ways["a launch alone"] = lambda *_: torch.cuda._sleep(0)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                way(x, y, z)
            if turn:
                found[name].append((time.perf_counter() - start) / 100)
    return {name: statistics.median(times) for name, times in found.items()}


Ways: TypeAlias = Callable[[Case], Mapping[str, Callable[..., Any]]]
"""What gives the ways to compute a case, one of which is "ours"."""


@dataclass(frozen=True)
class Prepared:
    """A case of which all ways are compiled, and give what is right.

    Attributes:
        case: what.
        ways: to compute it.
        bytes: of all operands and the result.
    """

    case: Case
    ways: Mapping[str, Callable[..., Any]]
    bytes: int

    @classmethod
    def of(cls, case: Case, ways_of: Ways) -> Prepared:
        """A case; raises an error where a result is wrong."""
        arguments = case.arguments("cuda")
        exact = case.fn(*(x.double() if x.is_floating_point() else x for x in arguments))
        magnitude = exact.abs().sum().item() if case.fn in SUMS else 0.0
        ways = ways_of(case)
        for name, way in ways.items():
            check(f"{case.name}, {name}", way(*arguments), exact, case.dtype, magnitude)
        result = case.fn(*arguments)
        moved = sum(x.numel() * x.element_size() for x in (*arguments, result))
        return cls(case, ways, moved)

    def row(self) -> Row:
        """Its times."""
        arguments = self.case.arguments("cuda")
        called = {name: lambda way=way: way(*arguments) for name, way in self.ways.items()}
        return Row(self.case, seconds_of({**called, "copy": copying(self.bytes)}), self.bytes)


def ways_of(case: Case) -> dict[str, Callable[..., Any]]:
    """The ways to compute a case, by their names in the table."""
    ways: dict[str, Callable[..., Any]] = {"ours": bt.jit("gpu")(case.fn), "eager": case.fn}
    if case.fn not in LOOPS:
        ways["compile"] = torch.compile(case.fn, dynamic=False)
    if importlib.util.find_spec("triton") is not None:
        from benchmarks import triton_kernels

        kernel = triton_kernels.KERNELS.get(case.fn.__name__)
        if kernel is not None and case.columns <= triton_kernels.LONGEST:
            ways["triton"] = kernel
    if case.fn is dense and case.dtype != torch.float32:
        ways["fused"] = bt.jit(bt.Target("cuda", products="fused"))(case.fn)
    return ways


def _measure(chosen: Sequence[Case], ways: Ways, ready: Any, turn: Any, results: Any) -> None:
    """What each process does: prepare cases, wait for the others, and time them by turns."""
    torch._dynamo.config.recompile_limit = len(chosen) + 1  # each case is one of its function
    importlib.import_module("torch._inductor.config").compile_threads = 1
    prepared: list[Prepared] = []
    for case in chosen:
        try:
            prepared.append(Prepared.of(case, ways))
        except Exception as error:
            results.put(f"{case.name} failed: {error}")
    torch.cuda.empty_cache()
    ready.wait()
    for one in prepared:
        with turn:
            try:
                results.put(one.row())
            except Exception as error:
                results.put(f"{one.case.name} failed: {error}")
            torch.cuda.empty_cache()


def all_measured(chosen: Sequence[Case], jobs: int, ways: Ways = ways_of) -> Iterator[Row | str]:
    """The cases as they were measured, or why one was not, as they come."""
    context = multiprocessing.get_context("spawn")
    ready, turn, results = context.Barrier(jobs), context.Lock(), context.Queue()
    processes = [
        context.Process(
            target=_measure, args=(chosen[n::jobs], ways, ready, turn, results), daemon=True
        )
        for n in range(jobs)
    ]
    for process in processes:
        process.start()
    for _ in chosen:
        while (found := _next(results)) is None:
            codes = [process.exitcode for process in processes if process.exitcode]
            if codes:
                raise SystemExit(f"a process that measured ended with {codes[0]}")
        yield found
    for process in processes:
        process.join()


def _next(results: Any) -> Row | str | None:
    """What comes next; None if that takes long."""
    try:
        found: Row | str = results.get(timeout=5)
    except queue.Empty:
        return None
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown."""
    head = ["work", "ours, us", "GB/s", "of a copy", *PEERS]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(row.cells())} |" for row in rows]


def heading(copy: float, calls: Mapping[str, float]) -> list[str]:
    """What stands above the table: where it was measured, and what does not depend on cases."""
    return [
        f"# {torch.cuda.get_device_name()}",
        "",
        f"{date.today()}; driver {driver()}, torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}. A copy of 1 GiB moves {copy / 1e9:.0f} GB/s. A call with three "
        f"tensors takes {', '.join(f'{name} {s * 1e6:.1f} us' for name, s in calls.items())} "
        f"({CALL * 1e6:.0f} us asked for). Others' times as long as ours; in brackets what is "
        "asked for, in bold what falls short of it.",
        "",
    ]


def driver() -> str:
    """The version of NVIDIA's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.check_output(command, text=True).splitlines()[0].strip()


def slug() -> str:
    """The GPU's name as that of a file."""
    return re.sub(r"\W+", "_", torch.cuda.get_device_name().lower())


def write(lines: Sequence[str], folder: Path) -> None:
    """The table as a file, also while it grows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{slug()}.md").write_text("\n".join(lines) + "\n")


def plot(rows: Sequence[Row], file: Path) -> None:
    """Shares of a copy's bandwidth as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.22 * len(rows) + 1.5))
    axes.barh(range(len(rows)), [row.share for row in rows])
    axes.axvline(ONE_PASS, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.case.name for row in rows], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("share of a copy's bandwidth")
    figure.tight_layout()
    figure.savefig(file, dpi=50)
    pyplot.close(figure)


def emulated(chosen: Sequence[Case]) -> None:
    """Run the cases on the tests' emulator, and check them."""
    from tests.conformance import gpu

    for case in chosen:
        arguments = case.arguments("cpu")
        exact = case.fn(*(x.double() if x.is_floating_point() else x for x in arguments))
        fused = replace(gpu.TARGET, products="fused")
        for target in (gpu.TARGET, fused) if case.fn is dense else (gpu.TARGET,):
            compiled = bt.jit(target=target)(case.fn).lower(*arguments).compile()
            magnitude = exact.abs().sum().item()
            check(case.name, gpu.call(compiled, arguments), exact, case.dtype, magnitude)
        print(f"{case.name}: right")


def options(description: str | None, results: str) -> argparse.Namespace:
    """What a benchmark of this kind was asked for.

    Args:
        description: of the benchmark.
        results: what is written there.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="only cases with one of these in their names")
    parser.add_argument("--results", type=Path, help=results)
    parser.add_argument("--jobs", type=int, default=2, help="how many processes compile")
    parser.add_argument("--emulated", action="store_true", help="without a GPU, and without times")
    return parser.parse_args()


def main() -> None:
    given = options(__doc__, "a folder for the table and the plot")
    found = cases(SMALL, SMALL) if given.emulated else cases(SIZES, LOOP_SIZES)
    chosen = [case for case in found if not given.parts or any(p in case.name for p in given.parts)]
    if given.emulated:
        from tests.emulator import emulator

        emulator.install()
        emulated(chosen)
        return
    head = heading(copy_bandwidth(), call_overhead())
    print("\n".join(head), flush=True)
    rows: list[Row] = []
    failed: list[str] = []
    for measured in all_measured(chosen, given.jobs):
        if isinstance(measured, str):
            failed.append(measured)
            print(measured, flush=True)
            continue
        print(" | ".join(measured.cells()), flush=True)
        rows = sorted([*rows, measured], key=lambda row: chosen.index(row.case))
        if given.results:
            write([*head, *table(rows), *failed], given.results)
    if given.results and rows:
        plot(rows, given.results / f"{slug()}.png")
    if failed:
        raise SystemExit(f"{len(failed)} of {len(chosen)} cases failed")


if __name__ == "__main__":
    main()
