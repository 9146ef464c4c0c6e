"""Random programs with branches, loops and writes, as source text.

Each works on two tensors of one shape, an int and a float. Every expression keeps shapes, dtypes
and bounds, so that any program is valid; loops end after a few steps.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from hypothesis import strategies as st

from tests.properties.programs import Drawn

SHAPE = (3, 4)
MAX_DEPTH = 3

TENSORS = (
    *("torch.sin({a} + {b})", "{a} * 0.5 - {b} * 0.25", "torch.tanh({a} * {s})", "{a}.flip(0)"),
    *("torch.where({a} > {b}, {a}, {b})", "({a} + {n}) * 0.5", "{a} - {a}.mean()", "{b} * 1.0"),
    *("torch.clamp({a} * 2, -1.0, 1.0)", "torch.softmax({a}, 1)", "{a} / ({b}.abs() + 1)"),
    *("torch.cat([{a}[1:], {b}[:1]])", "{a}.reshape(4, 3).T.reshape(3, 4) * 0.9"),
)
CONDITIONS = (
    *("{a}.sum() > {f}", "{a}[0, 1] < {b}[2, 3]", "{a}.max() > {f} and {b}.min() < {f}"),
    *("not {b}.mean() > {f}", "n > {k}", "s < {f} or {a}.sum() > 1", "{a}[{i}].sum() > {f}"),
)
WRITES = (
    *("{a}[{i}] = {b}[-1] * 0.5", "{a}[:, {j}] *= 0.7", "{a} += {b} * 0.1", "{a}.mul_(0.9)"),
    *("{a}[{i}, {j}] = s", "{a}[{a} > 1] = 0.5", "{a}.T[{j}] = {b}[:, {j}]", "{a}[n % 3] -= 0.3"),
)
NUMBERS = ("n += 1", "n = n * 2 % 7", "s = s * 0.5", "s = float({a}.mean())", "n = int({a}.sum())")

_NUMBERS = count()


class _Writer:
    """Grows a program's lines, a statement at a time."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.loops = 0

    def one(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def fill(self, text: str) -> str:
        names = ("a", "b") if self.one(True, False) else ("b", "a")
        numbers = {"i": self.one(0, 1, 2), "j": self.one(0, 1, 3), "k": self.one(1, 2, 5)}
        floats = {"f": self.one(-0.83, 0.171, 0.377, 1.31)}
        return text.format(a=names[0], b=names[1], n="n", s="s", **numbers, **floats)

    def block(self, depth: int, in_loop: bool) -> None:
        for _ in range(self.one(1, 2, 3)):
            self.statement(depth, in_loop)

    def statement(self, depth: int, in_loop: bool) -> None:
        indent = "    " * depth
        kinds = ["assign", "assign", "write", "number"]
        if depth <= MAX_DEPTH:
            kinds += ["if", "if", "for", "while"]
        if depth > 1:
            kinds += ["leave"]
        kind = self.one(*kinds)
        if kind == "assign":
            self.lines.append(indent + self.fill("{a} = " + self.one(*TENSORS)))
        elif kind == "write":
            self.lines.append(indent + self.fill(self.one(*WRITES)))
        elif kind == "number":
            self.lines.append(indent + self.fill(self.one(*NUMBERS)))
        elif kind == "if":
            self.branch(depth, in_loop)
        elif kind == "leave":
            self.lines.append(f"{indent}if {self.fill(self.one(*CONDITIONS))}:")
            ways = ("return a, b, n, s", "break", "continue") if in_loop else ("return a, b, n, s",)
            self.lines.append(f"{indent}    {self.one(*ways)}")
        else:
            self.loop(depth, kind)

    def branch(self, depth: int, in_loop: bool) -> None:
        indent = "    " * depth
        self.lines.append(f"{indent}if {self.fill(self.one(*CONDITIONS))}:")
        self.block(depth + 1, in_loop)
        if self.one(True, False):
            self.lines.append(f"{indent}else:")
            self.block(depth + 1, in_loop)

    def loop(self, depth: int, kind: str) -> None:
        indent = "    " * depth
        self.loops += 1
        step = f"i{self.loops}"
        if kind == "for":
            # Of 40 steps or a number of the run time: a loop that is run.
            bound = self.one("2", "3", "40", "n % 4")
            self.lines.append(f"{indent}for {step} in range({bound}):")
            self.lines.append(f"{indent}    a = a * 0.9 + {step} * 0.01")
        else:
            self.lines.append(f"{indent}{step} = 0")
            condition = self.fill(self.one(*CONDITIONS))
            self.lines.append(f"{indent}while {step} < 5 and ({condition}):")
            self.lines.append(f"{indent}    {step} += 1")
        self.block(depth + 1, True)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Drawn:
    """A random program and its arguments."""
    writer = _Writer(draw)
    writer.lines += ["    a, b, n, s = x * 1.0, y * 1.0, 1, 0.5"]
    writer.block(1, False)
    writer.lines.append("    return a, b, n, s")
    text = "def program(x, y):\n" + "\n".join(writer.lines) + "\n"
    path = f"<control flow {next(_NUMBERS)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, path, "exec"), scope)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    tensors = [torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in "xy"]
    return Drawn(text, scope["program"], tuple(tensors))
