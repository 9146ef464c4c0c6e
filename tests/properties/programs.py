"""Random well-typed programs: straight-line Python over a few tensors, as source text.

A program is grown a statement at a time; torch runs each statement as it is drawn, and one that
torch refuses, or whose numbers are out of bounds, is left out. So every program drawn is valid.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

MAX_STATEMENTS = 12
MAX_ELEMENTS = 4096
BOUND = 1e4

# {a}, {b} and {c} are tensors of the program, {d} a dimension of {a}, {e} another, {n} an int
# from -3 to 3, {f} a float.
STATEMENTS = (
    # arithmetic
    *("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1.5)", "{a} * {f}", "{f} - {a}"),
    *("{a} / {f}", "{a} + {n}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "-{a}"),
    *("torch.addcmul({a}, {b}, {c}, value=0.5)", "torch.lerp({a}, {b}, 0.3)", "abs({a})"),
    *("torch.clamp({a}, -1.0, 1.0)", "{a}.clamp(min=0)", "torch.atan2({a}, {b})", "{a} ** 2"),
    *("torch.square({a})", "torch.reciprocal({a}.abs() + 1)", "{a}.pow(3)", "{a}.sign()"),
    # functions
    *("torch.exp({a}.clamp(max=5))", "torch.log({a}.abs() + 1)", "torch.sqrt({a}.abs())"),
    *("torch.rsqrt({a}.abs() + 1)", "torch.sin({a})", "torch.cos({a})", "torch.tanh({a})"),
    *("torch.sigmoid({a})", "torch.erf({a})", "torch.expm1({a}.clamp(max=2))", "{a}.log1p()"),
    *("torch.floor({a})", "torch.trunc({a})", "torch.frac({a})", "{a}.atan()"),
    # activations
    *("F.relu({a})", "F.gelu({a})", "F.gelu({a}, approximate='tanh')", "F.silu({a})"),
    *("F.softplus({a})", "F.leaky_relu({a}, 0.1)", "F.elu({a})", "F.mish({a})"),
    *("F.hardswish({a})", "F.logsigmoid({a})", "F.hardtanh({a})", "F.softsign({a})"),
    # comparisons and choice
    *("{a} > {b}", "{a} <= 0", "({a} > 0) & ({b} > 0)", "~({a} > {b})", "torch.isfinite({a})"),
    *("torch.where({a} > 0, {b}, {c})", "torch.where({a} > {b}, {a}, 0.0)"),
    *("{a}.masked_fill({a} > 1, -1.0)", "({a} != {b}).to({c}.dtype)"),
    # reductions
    *("{a}.sum({d})", "{a}.sum({d}, keepdim=True)", "{a}.mean({d})", "{a}.mean()", "{a}.sum()"),
    *("{a}.amax({d})", "{a}.amin({d}, keepdim=True)", "{a}.var({d})", "{a}.std({d})"),
    *("torch.logsumexp({a}, {d})", "{a}.max({d}).values", "{a}.norm()", "{a}.prod({d})"),
    *("({a} > 0).any({d})", "({a} > 0).all()", "({a} > 0).sum()", "{a}.argmax({d})"),
    *("torch.cumsum({a}, {d})", "torch.linalg.vector_norm({a}, dim={d})", "{a}.amax()"),
    # rows
    *(
        "torch.softmax({a}, {d})",
        "F.log_softmax({a}, dim={d})",
        "F.layer_norm({a}, {a}.shape[-1:])",
    ),
    *("F.rms_norm({a}, {a}.shape[-1:])", "F.normalize({a}, dim={d})"),
    # products
    *("{a} @ {b}", "{a} @ {a}.mT", "torch.matmul({a}, {b})", "F.linear({a}, {b})"),
    *("torch.einsum('...i,...i->...', {a}, {b})", "torch.outer({a}, {b})", "torch.dot({a}, {b})"),
    # shapes
    *("{a}.reshape(-1)", "{a}.T", "{a}.transpose({d}, {e})", "{a}.unsqueeze({d})", "{a}.squeeze()"),
    *("{a}.flatten()", "{a}[None]", "{a}[..., None]", "{a}[0]", "{a}[-1]", "{a}[..., 1:]"),
    *("{a}[::2]", "{a}[..., :-1]", "torch.flip({a}, ({d},))", "torch.roll({a}, {n}, {d})"),
    *("torch.cat([{a}, {b}], {d})", "torch.stack([{a}, {a}], {d})", "{a}.repeat(2, 1)"),
    *("{a}.expand(2, *{a}.shape)", "{a}.chunk(2, {d})[0]", "torch.split({a}, 2, {d})[-1]"),
    *("torch.tril({a})", "torch.triu({a}, {n})", "F.pad({a}, (1, 2))", "{a}.narrow({d}, 0, 1)"),
    *(
        "{a}.movedim({d}, {e})",
        "torch.diagonal({a})",
        "{a}.unbind({d})[0]",
        "torch.tile({a}, (2,))",
    ),
    # creation and indexing
    *("torch.zeros_like({a}) + {f}", "{a} + torch.arange({a}.shape[-1])", "torch.ones_like({a})"),
    *("{a}.new_full({a}.shape, 2.0)", "{a}[..., torch.arange({a}.shape[-1]).flip(0)]"),
    *("torch.gather({a}, {d}, torch.zeros_like({a}, dtype=torch.int64))", "{a} * torch.eye(3)"),
    *("{a}.index_select({d}, torch.arange(1))", "torch.take_along_dim({a}, {a}.argsort({d}), {d})"),
    # casts
    *("{a}.double()", "{a}.float()", "{a}.to(torch.int64)", "{a}.bool()", "{a}.int()"),
)
SHAPES = ((), (1,), (3,), (7,), (3, 3), (1, 7), (4, 3), (2, 3, 5), (3, 1, 4), (2, 2, 3, 3))


@dataclass(frozen=True)
class Drawn:
    """A program: its text, the function that text defines, and arguments for it."""

    text: str
    fn: types.FunctionType
    arguments: tuple[torch.Tensor, ...]

    def __repr__(self) -> str:
        shapes = [f"{tuple(x.shape)} {x.dtype}" for x in self.arguments]
        return f"arguments: {', '.join(shapes)}\n{self.text}"


def resized(program: Drawn, change: int) -> tuple[torch.Tensor, ...]:
    """Arguments of other sizes for a program: what was equal still is, and 1 stays 1."""
    generator = torch.Generator().manual_seed(change)
    shapes = [[n if n == 1 else n + change for n in x.shape] for x in program.arguments]
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


_NUMBERS = count()


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Drawn:
    """A random program and its arguments."""
    shapes = [draw(st.sampled_from(SHAPES)) for _ in range(draw(st.integers(1, 3)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    arguments = tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    known = {f"x{i}": x for i, x in enumerate(arguments)}
    lines: list[str] = []
    for _ in range(draw(st.integers(1, MAX_STATEMENTS))):
        expression = _expression(draw, known)
        value = _evaluate(expression, known)
        if value is not None:
            name = f"v{len(lines)}"
            lines.append(f"    {name} = {expression}")
            known[name] = value
    return _program(lines, arguments)


def _expression(draw: Callable[[Any], Any], known: dict[str, torch.Tensor]) -> str:
    statement = draw(st.sampled_from(STATEMENTS))
    # The newest names first: a program is to be a chain, not a bush.
    names = list(known)[::-1]
    a, b, c = (draw(st.sampled_from(names)) for _ in "abc")
    rank = max(known[a].ndim, 1)
    return str(
        statement.format(
            a=a,
            b=b,
            c=c,
            d=draw(st.integers(-rank, rank - 1)),
            e=draw(st.integers(-rank, rank - 1)),
            n=draw(st.integers(-3, 3)),
            f=draw(st.sampled_from((0.5, 1.25, 2.0, -3.0))),
        )
    )


def _evaluate(expression: str, known: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """What torch makes of an expression, or ``None`` if it is not to be part of a program."""
    try:
        value = eval(expression, {"torch": torch, "F": F, **known})
    except Exception:  # torch refuses these operands
        return None
    if not isinstance(value, torch.Tensor) or not 0 < value.numel() <= MAX_ELEMENTS:
        return None
    if not bool(torch.isfinite(value).all()) or float(value.double().abs().max()) > BOUND:
        return None
    return value


def _program(lines: list[str], arguments: tuple[torch.Tensor, ...]) -> Drawn:
    parameters = ", ".join(f"x{i}" for i in range(len(arguments)))
    results = ", ".join(f"v{i}" for i in range(len(lines))) or "x0"
    body = "\n".join([*lines, f"    return ({results},)"])
    text = f"def program({parameters}):\n{body}\n"
    # A file that exists only in linecache, as a notebook's cell does.
    path = f"<program {next(_NUMBERS)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, path, "exec"), scope)
    return Drawn(text, scope["program"], arguments)
