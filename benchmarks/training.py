"""Gradients against torch's: how many times longer eager and torch.compile take.

    python -m benchmarks.training [--device cuda] [--results FOLDER] [PART OF A NAME ...]

For each function the way back alone, and forth and back. Each gradient is checked against torch's
in float64 before it is timed; all ways are timed in turns in one process, and medians are
compared: below 1.00 we are the slower.
"""

from __future__ import annotations

import argparse
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as F

import babytriton as bt
from benchmarks.cpu import processor
from benchmarks.measure import Timing, Way, check, in_turns

# torch.compile's way back is to run again and again.
torch._functorch.config.donated_buffer = False

ROWS, COLUMNS = 4096, 1024
PEERS = ("eager", "compile")


def gelu(x):
    return F.gelu(x)


def gelu_bias(x, b):
    return F.gelu(x + b)


def swiglu(a, b):
    return F.silu(a) * b


def softmax(x):
    return torch.softmax(x, -1)


def rms_norm(x, w):
    return F.rms_norm(x, (COLUMNS,), w)


def layer_norm(x, w, b):
    return F.layer_norm(x, (COLUMNS,), w, b)


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def norm_by_hand(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def targets() -> torch.Tensor:
    return torch.randint(COLUMNS, (ROWS,))


@dataclass(frozen=True)
class Case:
    """A function, and what makes its arguments."""

    fn: Callable[..., torch.Tensor]
    make: tuple[Callable[[], torch.Tensor], ...]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.fn.__name__} {ROWS}x{COLUMNS} {dtype}"

    def arguments(self, device: str) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return tuple(self._argument(make(), device) for make in self.make)

    def _argument(self, x: torch.Tensor, device: str) -> torch.Tensor:
        dtype = self.dtype if x.is_floating_point() else x.dtype
        return x.detach().to(device, dtype).requires_grad_(x.requires_grad)


def matrix() -> torch.Tensor:
    return drawn(ROWS, COLUMNS)


def row() -> torch.Tensor:
    return drawn(COLUMNS)


FUNCTIONS = (
    (gelu, (matrix,)),
    (gelu_bias, (matrix, row)),
    (swiglu, (matrix, matrix)),
    (softmax, (matrix,)),
    (rms_norm, (matrix, row)),
    (norm_by_hand, (matrix, row)),
    (layer_norm, (matrix, row, row)),
    (cross_entropy, (matrix, targets)),
)
CASES = tuple(
    Case(fn, make, dtype) for dtype in (torch.float32, torch.bfloat16) for fn, make in FUNCTIONS
)


@dataclass(frozen=True)
class Row:
    """A case, what was measured, and how many kernels its way back has."""

    case: Case
    back: Timing
    both: Timing
    kernels: int

    def cells(self) -> list[str]:
        """As a line of the table."""
        cells = [self.case.name, str(self.kernels)]
        for timing in (self.back, self.both):
            cells.append(f"{timing.seconds['ours'] * 1e6:.4g}")
            for peer in PEERS:
                ratio = timing.ratio(peer)
                cells.append("" if ratio is None else f"{ratio:.2f}")
        return cells


def measured(case: Case, device: str) -> Row:
    """A case timed against others, once all gradients are right."""
    torch.compiler.reset()
    arguments = case.arguments(device)
    wide = [
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in arguments
    ]
    exact = case.fn(*wide)
    grad = torch.rand_like(exact).to(case.dtype)
    expected = torch.autograd.grad(exact, _leaves(wide), grad.double())
    compiled = bt.jit(case.fn)
    functions = {
        "ours": compiled,
        "eager": case.fn,
        "compile": torch.compile(case.fn, dynamic=False),
    }
    back, both = {}, {}
    for name, fn in functions.items():
        back[name], both[name] = _ways(fn, arguments, grad)
        for found, gradient in zip(both[name](), expected):
            summed = grad.numel() / max(gradient.numel(), 1) * 8
            check(f"{case.name}, {name}", found, gradient, case.dtype, summed)
    kernels = len(compiled.lower(*arguments).compile().backward.kernels)
    return Row(case, in_turns(back), in_turns(both), kernels)


def _leaves(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x for x in arguments if x.requires_grad]


def _ways(
    fn: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...], grad: torch.Tensor
) -> tuple[Way, Way]:
    """The way back of one call again and again; and calls, forth and back."""
    inputs = _leaves(arguments)
    result = fn(*arguments)

    def back() -> Any:
        return torch.autograd.grad(result, inputs, grad, retain_graph=True)

    def both() -> Any:
        return torch.autograd.grad(fn(*arguments), inputs, grad)

    return Way(back), Way(both)


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown."""
    columns = [
        f"{way}{part}" for way in ("back", "both") for part in (", us", *map(" {}".format, PEERS))
    ]
    head = ["work", "kernels back", *columns]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row.cells())} |" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RawDescription)
    parser.add_argument("parts", nargs="*", help="only cases with one of these in their names")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--results", type=Path, help="a folder for the table")
    given = parser.parse_args()
    chosen = [c for c in CASES if not given.parts or any(p in c.name for p in given.parts)]
    on_gpu = given.device.startswith("cuda")
    what = torch.cuda.get_device_name() if on_gpu else processor()
    threads = "" if on_gpu else f", {torch.get_num_threads()} threads"
    head = f"{what}{threads}, {date.today()}; torch {torch.__version__}"
    print(head, "\n")
    rows = []
    for case in chosen:
        rows.append(measured(case, given.device))
        print("\n".join(table(rows) if len(rows) == 1 else table(rows)[-1:]), flush=True)
    if given.results and rows:
        given.results.mkdir(parents=True, exist_ok=True)
        note = "Times as long as ours, of the way back alone and of both ways; ours in us."
        text = [f"# {head}", "", note, "", *table(rows)]
        (given.results / f"training_{given.device}.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
