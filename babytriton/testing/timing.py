"""``bench``: how long calls take, beside the same in torch; ``do_bench`` as Triton has it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from babytriton.integrations import require
from babytriton.integrations.torch_library import LibraryOp
from babytriton.jit import JitFunction
from babytriton.ops.trees import leaves_in
from babytriton.testing.samples import samples_of

ROUNDS = 5
_L2 = 256 * 2**20  # bytes that are written to empty the cache of a GPU
_MODES: Mapping[str, Callable[[Sequence[float]], Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "all": list,
}


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Time a call, as ``triton.testing.do_bench`` does, on the CPU as well.

    Args:
        fn: is called without arguments.
        warmup: milliseconds of calls that are not timed.
        rep: milliseconds of calls that are, at least one.
        grad_to_none: tensors whose ``grad`` is set to ``None`` before each call.
        quantiles: to return, between 0 and 1, in place of ``return_mode``.
        return_mode: ``"min"``, ``"max"``, ``"mean"``, ``"median"`` or ``"all"``.

    Returns:
        Milliseconds: a number, or a list for ``"all"`` and for quantiles.

    Raises:
        ValueError: there is no such ``return_mode``.
    """
    if return_mode not in _MODES:
        raise ValueError(f"return_mode must be one of {', '.join(_MODES)}, not {return_mode!r}")
    return _summary(_times(fn, warmup, rep, grad_to_none or ()), quantiles, return_mode)


def _summary(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    if quantiles is None:
        return _MODES[return_mode](times)
    found = torch.quantile(torch.tensor(times), torch.tensor(quantiles, dtype=torch.float32))
    return found.tolist()


def _times(
    fn: Callable[[], Any], warmup: float, rep: float, grads: Iterable[torch.Tensor]
) -> list[float]:
    """Milliseconds of each of several calls."""
    results = leaves_in(fn(), torch.Tensor)  # it compiles, and says where the work is done
    timed = _on_gpu if any(x.is_cuda for x in results) else _on_cpu
    grads = list(grads)
    estimate = max(statistics.fmean(timed(fn, 5, grads)), 1e-4)
    timed(fn, max(1, int(warmup / estimate)), grads)
    return timed(fn, max(1, int(rep / estimate)), grads)


def _on_cpu(fn: Callable[[], Any], calls: int, grads: Sequence[torch.Tensor]) -> list[float]:
    found = []
    for _ in range(calls):
        for tensor in grads:
            tensor.grad = None
        start = time.perf_counter()
        fn()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def _on_gpu(fn: Callable[[], Any], calls: int, grads: Sequence[torch.Tensor]) -> list[float]:
    cache = torch.empty(_L2, dtype=torch.int8, device="cuda")
    pairs = []
    for _ in range(calls):
        for tensor in grads:
            tensor.grad = None
        cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        fn()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


@dataclass(frozen=True)
class Timings:
    """How long calls took.

    Attributes:
        name: of what was timed.
        ways: the names of the ways to compute it; ours is the first.
        milliseconds: for each sample by its name, those of each way.
        gigabytes: for each sample, what its call has to read and write at least.
    """

    name: str
    ways: tuple[str, ...]
    milliseconds: Mapping[str, tuple[Any, ...]]
    gigabytes: Mapping[str, float]

    def __str__(self) -> str:
        """A table: milliseconds of each way, our GB/s, and how many times longer others take."""
        ours, *others = self.ways
        heads = [self.name, *(f"{way} ms" for way in self.ways), f"{ours} GB/s"]
        heads += [f"{way} / {ours}" for way in others]
        rows = [heads]
        for sample, times in self.milliseconds.items():
            if not all(isinstance(x, float) for x in times):
                rows.append([sample, *map(str, times)])
                continue
            rates = [f"{self.gigabytes[sample] / times[0] * 1e3:.1f}"]
            ratios = [f"{x / times[0]:.2f}" for x in times[1:]]
            rows.append([sample, *(f"{x:.4g}" for x in times), *rates, *ratios])
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(heads))]
        lines = [
            [x.rjust(n) if i else x.ljust(n) for i, (x, n) in enumerate(zip(r, widths))]
            for r in rows
        ]
        return "\n".join("  ".join(line).rstrip() for line in lines)

    def plot(self, path: str | Path) -> Path:
        """Write a plot: a group of bars a sample.

        Args:
            path: of the file, whose ending says what kind it is.

        Returns:
            The path.

        Raises:
            ImportError: matplotlib is not installed.
        """
        require("matplotlib", "a plot", "matplotlib")
        figures = require("matplotlib.figure", "a plot", "matplotlib")
        figure = figures.Figure(figsize=(2 + 1.5 * len(self.milliseconds), 4), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(self.ways)
        for i, way in enumerate(self.ways):
            heights = [_one(times[i]) for times in self.milliseconds.values()]
            axes.bar([x + i * width for x in range(len(heights))], heights, width, label=way)
        middle = 0.4 - width / 2
        axes.set_xticks([x + middle for x in range(len(self.milliseconds))], self.milliseconds)
        axes.set_ylabel("milliseconds")
        axes.set_title(self.name)
        axes.legend()
        figure.savefig(path)
        return Path(path)


def _one(times: Any) -> float:
    """A number for a bar: of several, the one in the middle."""
    return statistics.median(times) if isinstance(times, list) else float(times)


def bench(
    op: LibraryOp | JitFunction,
    samples: Iterable[Any],
    *,
    against: Mapping[str, Callable[..., Any]] | None = None,
    warmup: float = 25,
    rep: float = 100,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "median",
) -> Timings:
    """Time an operator, or a compiled function, beside others.

    All ways take turns, so that what else the machine does is fair to all of them.

    Args:
        op: what is timed.
        samples: a list of arguments: each a tuple, a :class:`Sample`, or the one argument.
        against: other functions of the same arguments, by name; by default the plain function,
            as ``torch``.
        warmup, rep, quantiles, return_mode: as :func:`do_bench` takes them, for each way.

    Returns:
        A table, when it is printed; it can be plotted too.

    Raises:
        ValueError: there are no samples, or no such ``return_mode``.
    """
    if return_mode not in _MODES:
        raise ValueError(f"return_mode must be one of {', '.join(_MODES)}, not {return_mode!r}")
    ways: dict[str, Callable[..., Any]] = {"babytriton": op}
    ways |= {"torch": op.fn} if against is None else dict(against)
    milliseconds, gigabytes = {}, {}
    for sample in samples_of(samples):
        calls = {}
        for name, fn in ways.items():
            own = sample.copied()  # which some functions write to
            calls[name] = partial(fn, *own.args, **own.kwargs)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                found[name] += _times(call, warmup / ROUNDS, rep / ROUNDS, ())
        summaries = tuple(_summary(found[name], quantiles, return_mode) for name in ways)
        row, number = sample.name, 1
        while row in milliseconds:
            number += 1
            row = f"{sample.name} #{number}"
        milliseconds[row] = summaries
        moved = [*sample.tensors(), *leaves_in(calls["babytriton"](), torch.Tensor)]
        gigabytes[row] = sum(x.numel() * x.element_size() for x in moved) / 1e9
    return Timings(op.__name__, tuple(ways), milliseconds, gigabytes)
