"""Random loops that read and write rows of tensors, as source text.

Each works on tensors with rows of 16x128 numbers, of which kernels for products read no part of a
longer tensor: such a part is a row that is read where it lies. All numbers stay between -2 and 2 or
so.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from hypothesis import strategies as st

from tests.properties.programs import Drawn

STEPS, ROWS = 36, 40

PLACES = ("{t}", "{t}", "{t} + 1", "35 - {t}", "0", "{t} % 3", "{t} // 2", "{t} + 2")
ROW = ("x[{i}]", "y[{i}]", "x[{i}]", "h", "g")
VALUES = (
    *("torch.tanh({r} @ w + {q})", "torch.tanh({r} + {q}) @ w", "{r} * 0.5 + {q} * 0.25"),
    *("torch.tanh({r} @ w + {q} @ w)", "{r} @ w", "torch.sin({r})", "{r}.flip(0) @ w"),
    *("torch.sort({r} * 0.5).values", "{r} - y.mean()", "torch.softmax({r}, 1)", "{r} * 1.0"),
)
CELLS = (
    "torch.tanh({r} @ w + h @ w) * 0.4 + 0.3",
    "torch.tanh({r} @ w) * 0.5 + h * 0.3 - 0.2",
    "torch.tanh(h @ w + g) * 0.6 + {q} * 0.2",
)
"""Steps that neither blow up differences nor forget what was wrong."""

STORES = ("y[{i}] = h", "x[{i}] = h", "outs.append(h)", "y[{t}] = h", "x[{t}] = h")
STATEMENTS = (
    *("h = {v}", "h = {v}", "g = {v}", "h, g = g, {v}", "h, g = g, h", "x[{i}] = h"),
    *("x[{i}] = {v}", "y[{i}] = {v}", "y[{i}] = g", "y[{i}] = h", "y[{i}] += h * 0.1"),
    *("outs.append(h)", "outs.append({v})", "h = h + y.sum() * 0.001", "p = {r} + 0.0"),
    *("x[{i}] = p", "g = p @ w", "y = y * 0.9", "y[{i}] = outs_of(h, w)"),
)
_NUMBERS = count()


def outs_of(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A helper, which is inlined."""
    return torch.tanh(h @ w)


class _Writer:
    """Grows a program's lines."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []

    def one(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def fill(self, text: str, step: str) -> str:
        for name, choices in (("{v}", VALUES), ("{r}", ROW), ("{q}", ROW), ("{i}", PLACES)):
            while name in text:
                text = text.replace(name, self.one(*choices), 1)
        return text.replace("{t}", step)

    def loop(self, depth: int, step: str) -> None:
        indent = "    " * depth
        self.lines.append(f"{indent}for {step} in range({STEPS}):")
        if is_cell := self.one(True, True, False):
            self.lines.append(f"{indent}    h = {self.fill(self.one(*CELLS), step)}")
        for _ in range(self.one(0, 0, 1, 2) if is_cell else self.one(2, 3, 4)):
            kind = self.one(*["plain"] * 6, "if", *(["for"] if depth == 1 else []))
            if kind == "if":
                condition = self.fill("{r}.sum() > 0.1", step)
                self.lines.append(f"{indent}    if {condition}:")
                self.lines.append(f"{indent}        {self.fill(self.one(*STATEMENTS[:11]), step)}")
            elif kind == "for":
                self.loop(depth + 1, f"{step}{step}")
            else:
                text = self.one(*STATEMENTS)
                if "outs.append" in text and depth > 1:
                    text = "g = {v}"
                self.lines.append(f"{indent}    {self.fill(text, step)}")
        if is_cell:
            text = self.one(*(STORES if depth == 1 else STORES[:2]))
            self.lines.append(f"{indent}    {self.fill(text, step)}")


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Drawn:
    """A random program and its arguments."""
    writer = _Writer(draw)
    first = writer.one("y = torch.zeros_like(x)", "y = x.clone()", "y = x * 0.5")
    writer.lines += [f"    {first}", "    h, g, p, outs = x[0] * 1.0, x[1] * 1.0, x[2] * 1.0, []"]
    for _ in range(writer.one(1, 1, 2)):
        writer.loop(1, "t")
    if writer.one(True, False):
        writer.lines.append("    y += 1")
    writer.lines.append("    return x * 1.0, y, h, g, p, torch.stack([h, *outs])")
    text = "def program(x, w):\n" + "\n".join(writer.lines) + "\n"
    path = f"<rows {next(_NUMBERS)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope: dict[str, Any] = {"torch": torch, "outs_of": outs_of}
    exec(compile(text, path, "exec"), scope)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.randn(ROWS, 16, 128, generator=generator, dtype=torch.float64) * 0.5
    w = torch.randn(128, 128, generator=generator, dtype=torch.float64) * 0.04
    return Drawn(text, scope["program"], (x, w))
