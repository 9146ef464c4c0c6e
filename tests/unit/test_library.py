"""Relax's library functions called by name inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tvm import relax
from tvm.relax.op import sigmoid as logistic
from tvm.relax.op.nn import softmax

import babytriton as bt
from tests.conformance import gpu

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
N = torch.arange(24, dtype=torch.int32).reshape(4, 6)


def imported_inside(x):
    from tvm.relax.op import clip, split

    left, right = split(x, 2, axis=1)
    return clip(left, 0.0, 1.0), right


CASES: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x: softmax(x, axis=0) * 2, lambda x: torch.softmax(x, 0) * 2, (X,)),
    (lambda x, y: logistic(x + y), lambda x, y: torch.sigmoid(x + y), (X, Y)),
    (lambda x, y: relax.op.add(x, y), torch.add, (X.double(), Y.double())),
    (lambda x: relax.op.subtract(1, x), lambda x: 1 - x, (X,)),
    (lambda x: relax.op.multiply(x, 3), lambda x: x * 3, (N,)),
    (lambda x, s: relax.op.multiply(x, s), lambda x, s: x * s, (X, 2.5)),
    (lambda x: relax.op.sum(x, axis=[0], keepdims=True), lambda x: x.sum(0, True), (X,)),
    (lambda x: relax.op.astype(x, torch.float16), lambda x: x.half(), (X,)),
    (lambda x, y: relax.op.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1), (X, Y)),
    (lambda: relax.op.full((2, 3), 4.0, "float32"), lambda: torch.full((2, 3), 4.0), ()),
    (lambda x: relax.op.where(x > 0, x, 0.0), lambda x: torch.where(x > 0, x, 0.0), (X,)),
    (lambda x: relax.op.nn.relu(x.bfloat16()), lambda x: torch.relu(x.bfloat16()), (X,)),
    (lambda x, y: relax.op.linear(x, y), lambda x, y: x @ y.T, (X, Y)),
    (imported_inside, lambda x: (x[:, :3].clip(0, 1), x[:, 3:]), (X,)),
    (lambda x: relax.op.sum(x, axis=0), lambda x: x.sum(0), (X[:0],)),
    (lambda x: relax.op.exp(x), torch.exp, (X[:0],)),
]


@pytest.mark.parametrize(("fn", "reference", "args"), CASES)
def test_matches_torch(
    fn: Callable[..., Any], reference: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    expected = reference(*args)
    torch.testing.assert_close(bt.jit("cpu")(fn)(*args), expected)
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    torch.testing.assert_close(gpu.call(compiled, args), expected)


def test_fuses_with_its_neighbours() -> None:
    lowered = bt.jit("cpu")(lambda x, y: relax.op.tanh(x + y) * 2).lower(X, Y)
    assert len(lowered.schedule().kernels) == 1


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: relax.op.matmul(x, x), "requires the reduction length of the operands"),
        (lambda x: relax.op.add(x, x.double()), "must have the same datatype"),
        (lambda x: softmax(x, axis=5), "In relax.nn.softmax, the input axis 5 is out of range"),
        (lambda x: relax.op.add(x, x, x), "too many positional arguments"),
        (lambda x: relax.op.sum(x, axis="x"), "Expected `Optional<Array<int>>`"),
        (lambda x: relax.op.add(x.int(), 1.5), "1.5 is no int32"),
        (lambda x: relax.op.add(x.to(torch.uint8), 256), "256 is no uint8"),
        (lambda x: relax.op.nonzero(x), "the size of its result is known only at run time"),
        (lambda x: relax.op.topk(x), "TVM makes no kernel of relax.topk"),
        (lambda x: relax.op.nn.pixel_shuffle(x.reshape(1, 4, 2, 3), 2), "makes no kernel of it"),
        (lambda x: relax.op.logical_and(x, x), "TVM makes no kernel of it: "),
        (lambda x: relax.op.print(x), "it is part of how TVM runs a program"),
        (lambda x: relax.op.register_gradient(x), "it is part of how TVM runs a program"),
    ],
)
def test_misuse(fn: Callable[..., Any], why: str) -> None:
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(fn)(X)
    assert why in str(caught.value)
    assert "test_library.py" in str(caught.value)


def test_a_new_float_does_not_compile_again() -> None:
    fn = bt.jit("cpu")(lambda x, s: relax.op.add(x, s))
    for s in (0.5, 1.5):
        torch.testing.assert_close(fn(X, s), X + s)
    assert len(fn.specializations()) == 1
