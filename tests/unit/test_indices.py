"""Indices with divisions within divisions, which TVM's simplifier gets wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tvm import IRModule, ir, tirx

import babytriton as bt
from babytriton.ops.primfunc import nodes
from babytriton.passes import indices
from babytriton.passes.statements import at_step
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def repeated(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(2)[1:].repeat_interleave(2)[1:]


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, -1).flatten()[1:].repeat_interleave(2, 0)[1:]


def rolled(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(3)[2:].repeat_interleave(3)[1:].roll(5) * 2


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2)[1:].repeat_interleave(3)[2:] * 2


def turned(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x[None], (1, 0), mode="circular")[0].flip(-1) + x.repeat(2).flip(0)[: len(x) + 1]


def beside_itself(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.repeat(2).flip(0), x])


def reflected(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x.repeat(2)[None], (0, 2), mode="reflect")[0]


def twice_turned(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x.repeat(2).flip(0), (1, 2)).repeat(2).roll(1)


FUNCTIONS = pytest.mark.parametrize(
    "fn",
    [
        *(repeated, expanded, rolled, interleaved, turned),
        *(beside_itself, reflected, twice_turned),
    ],
)


@FUNCTIONS
@pytest.mark.parametrize("dynamic", [False, True])
def test_on_the_cpu(fn: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    for size in (8, 9, 13):
        x = torch.arange(float(size))
        assert torch.equal(bt.jit("cpu", dynamic=dynamic)(fn)(x), fn(x))


@pytest.mark.parametrize("times", [2, 8, 12])
def test_falling_indices_of_tasks(times: int) -> None:
    """Several tasks share each row, whose index has a division within another then."""

    def fallen(x, c):
        whole = c.repeat(1, times)
        return whole.flip(1), x + whole.flip(1), (x + whole).flip(-1)

    c = torch.randn(16, 128)
    x = torch.randn(2, 16, times * 128)
    for found, exact in zip(bt.jit("cpu")(fallen)(x, c), fallen(x, c)):
        assert torch.equal(found, exact)


@needs_gpu
@FUNCTIONS
def test_on_the_gpu(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(8.0)
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    assert torch.equal(gpu.call(compiled, (x,)), fn(x))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_vectors_of_parts(dtype: torch.dtype) -> None:
    """What hides divisions from TVM is gone where it asks whether elements lie together."""

    def total(x):
        return x[..., 1:, :].sum()

    x = (torch.arange(384) % 7).reshape(2, 3, 8, 8).to(dtype)
    compiled = bt.jit(gpu.TARGET)(total).lower(x).compile()
    assert torch.equal(gpu.call(compiled, (x,)), total(x))
    assert " | " not in compiled.source()


def test_what_hides_divisions_is_taken_away() -> None:
    x, i = tirx.decl_buffer((64,), "float32", "x"), tirx.Var("i", "int64")
    hidden = tirx.bitwise_or(tirx.floordiv(i + 1, tirx.const(2, "int64")), tirx.const(0, "int64"))
    body = tirx.BufferStore(x, tirx.const(0.0, "float32"), [hidden])
    mod = indices.in_short(IRModule({"kernel": tirx.PrimFunc([x, i], body)}))
    (store,) = nodes(mod["kernel"].body, tirx.BufferStore)
    assert isinstance(store.indices[0], tirx.FloorDiv)


def drawn_index(draw: random.Random, variables: list[tirx.Var], depth: int) -> ir.Expr:
    """An index of sums, products and divisions, some within others."""
    if depth == 0:
        return draw.choice(variables) * draw.choice([1, 1, 3, 4, 28])
    parts = [drawn_index(draw, variables, depth - 1) for _ in range(2)]
    divide = draw.choice([lambda x, _: x, tirx.floordiv, tirx.floormod])
    return divide(parts[0] + parts[1] + draw.choice([0, 0, 1, -1]), draw.choice([2, 3, 4, 28, 32]))


def value_at(index: ir.Expr, place: dict[tirx.Var, int]) -> int:
    for variable, number in place.items():
        index = at_step(index, variable, tirx.const(number, "int32"))
    return int(computed(index))


def computed(index: ir.Expr) -> ir.Expr:
    """Of numbers alone, which TVM computes one by one."""
    kinds = {tirx.Add: int.__add__, tirx.Mul: int.__mul__, tirx.Sub: int.__sub__}
    kinds |= {tirx.FloorDiv: int.__floordiv__, tirx.FloorMod: int.__mod__}
    if isinstance(index, tirx.IntImm):
        return index
    both = (int(computed(part)) for part in (index.a, index.b))
    return tirx.const(kinds[type(index)](*both), "int32")


@pytest.mark.parametrize("seed", range(40))
def test_shorter_indices_are_the_same(seed: int) -> None:
    draw = random.Random(seed)
    extents = [draw.choice([2, 3, 4, 5, 7]) for _ in range(3)]
    variables = [tirx.Var(name, "int32") for name in "ijk"]
    index = drawn_index(draw, variables, 3)
    buffer = tirx.decl_buffer((1 << 20,), "float32", "x")
    body = tirx.BufferStore(buffer, tirx.const(0.0, "float32"), [index])
    for variable, extent in zip(variables, extents):
        zero, count = tirx.const(0, "int32"), tirx.const(extent, "int32")
        body = tirx.For(variable, zero, count, tirx.ForKind.SERIAL, body)
    mod = indices.in_short(IRModule({"kernel": tirx.PrimFunc([buffer], body)}))
    body = mod["kernel"].body
    while isinstance(body, tirx.For):
        body = body.body
    (shorter,) = body.indices
    for place in itertools.product(*map(range, extents)):
        at = dict(zip(variables, place))
        assert value_at(shorter, at) == value_at(index, at)
