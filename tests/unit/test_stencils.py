"""Values that are read at several places: none of these is a copy that a kernel makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu

X = torch.linspace(-2, 3, 11 * 26).reshape(11, 26)
IMAGES = torch.linspace(-2, 3, 2 * 9 * 13).sin().reshape(2, 9, 13)
BOXES, OTHERS = torch.rand(7, 4), torch.rand(5, 4)


def taps(x):
    y = torch.sigmoid(x)
    return y[:, 2:] + y[:, 1:-1] + y[:, :-2]


def laplace(x):
    p = F.pad(x, (1, 1, 1, 1))
    around = p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:]
    return around - 4 * x


def sobel(x):
    p = F.pad(x, (1, 1, 1, 1))
    left, right = p[:, :, :-2], p[:, :, 2:]
    above, below = p[:, :-2], p[:, 2:]
    x = right[:, :-2] - left[:, :-2] + 2 * (right[:, 1:-1] - left[:, 1:-1])
    x = x + right[:, 2:] - left[:, 2:]
    y = below[:, :, :-2] - above[:, :, :-2] + 2 * (below[:, :, 1:-1] - above[:, :, 1:-1])
    y = y + below[:, :, 2:] - above[:, :, 2:]
    return torch.sqrt(x * x + y * y)


def causal_convolution(x, w):
    p = F.pad(x, (0, 0, 3, 0))
    count = x.shape[1]
    y = p[:, :count] * w[0]
    for n in range(1, 4):
        y = y + p[:, n : n + count] * w[n]
    return F.silu(y)


def packed(x):
    q = (x * 7).round().clamp(-8, 7).to(torch.int8) & 15
    return q[:, ::2] | (q[:, 1::2] << 4)


def intersections(a, b):
    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def rotations(q):
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    return torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)), -1)


def gelu_of_halves(x):
    a, b = F.gelu(x).chunk(2, -1)
    return a * b, a + b


def several(x):
    y = torch.sigmoid(x)
    return y[:, 2:] * 2, y[:, :-2] + 1, y[:, 1:-1].exp()


def written(x):
    y = torch.sigmoid(x)
    x[:, 1:-1] = y[:, 2:] + y[:, :-2]
    return x * 2


KERNELS: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = [
    (taps, (X,), 1),
    (laplace, (IMAGES,), 1),
    (sobel, (IMAGES,), 2),  # the padded images are in memory once: eight places are many
    (causal_convolution, (IMAGES, torch.linspace(-1, 1, 52).reshape(4, 13)), 1),
    (packed, (X,), 1),
    (intersections, (BOXES, OTHERS), 1),
    (rotations, (BOXES - 0.5,), 2),
    (gelu_of_halves, (X,), 1),
    (several, (X,), 1),
]
"""Functions, what they are given, and how many kernels they are at most."""


def check(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    """Results are those of float64, but for what the dtype rounds."""
    within = 2e-5 if dtype == torch.float32 else 2e-2
    some = (found, wanted) if isinstance(found, tuple) else ((found,), (wanted,))
    for one, other in zip(*some, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other.double(), rtol=within, atol=within)


@pytest.mark.parametrize(
    ("fn", "arguments", "count"), KERNELS, ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parts_are_read_where_they_lie(
    fn: Callable[..., Any], arguments: tuple[torch.Tensor, ...], count: int, dtype: torch.dtype
) -> None:
    given = tuple(x.to(dtype) for x in arguments)
    wanted = fn(*(x if fn is packed else x.double() for x in given))
    compiled = bt.jit(gpu.TARGET)(fn).lower(*given).compile()
    assert len(compiled.launches) == count
    check(gpu.call(compiled, given), wanted, dtype)
    check(bt.jit("cpu")(fn)(*given), wanted, dtype)


@pytest.mark.parametrize(
    ("fn", "arguments", "count"), KERNELS, ids=lambda x: getattr(x, "__name__", "")
)
def test_parts_of_symbolic_sizes(
    fn: Callable[..., Any], arguments: tuple[torch.Tensor, ...], count: int
) -> None:
    wanted = fn(*(x if fn is packed else x.double() for x in arguments))
    if fn not in (packed, gelu_of_halves):  # whether their halves are as long no size tells
        compiled = bt.jit(gpu.TARGET, dynamic=True)(fn).lower(*arguments).compile()
        assert len(compiled.launches) <= 2, compiled.launches
        check(gpu.call(compiled, arguments), wanted, torch.float32)
    check(bt.jit("cpu", dynamic=True)(fn)(*arguments), wanted, torch.float32)


@pytest.mark.parametrize("target", ["cpu", gpu.TARGET], ids=["cpu", "gpu"])
def test_a_tensor_is_written_from_what_it_was(target: Any) -> None:
    """What is written to a tensor reads its neighbours as they were before."""
    given, wanted = (X.clone(),), X.double()
    result = written(wanted)
    compiled = bt.jit(target)(written).lower(*given).compile()
    found = compiled(*given) if target == "cpu" else gpu.call(compiled, given)
    check((found, given[0]), (result, wanted), torch.float32)


def test_much_is_not_computed_at_each_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * torch.exp(x) + torch.sin(x) * torch.cos(x)
        return y[:, 3:] + y[:, 2:-1] + y[:, 1:-2] + y[:, :-3]

    x = X[:8, :16].contiguous()
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    assert len(compiled.launches) == 2
    assert compiled.source("cuda").count("tanhf(") == 1
    check(gpu.call(compiled, (x,)), fn(x.double()), torch.float32)


def test_steps_of_a_stencil_that_read_more_and_more_go_through_memory() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x[:, 2:] + x[:, 1:-1] + x[:, :-2]) / 3
        return x

    compiled = bt.jit(gpu.TARGET)(fn).lower(X).compile()
    assert 2 <= len(compiled.launches) <= 3
    check(gpu.call(compiled, (X,)), fn(X.double()), torch.float32)


def test_processors_compute_functions_once() -> None:
    source = bt.jit("cpu")(taps).lower(X).compile().source("tir")
    assert source.count("sigmoid(") == 1


def test_what_is_certain_is_not_asked() -> None:
    images = torch.empty(8, 1024, 1024, device="meta")
    compiled = bt.jit(bt.Target("cuda", arch="sm_90"))(laplace).lower(images).compile()
    source = compiled.source("cuda")
    # In the middle of a padded image all columns are inside, and the rows but the first and last.
    assert "thread * 4 + lane + 1 < 1025" not in source
    assert "(block & 1023) + 1" not in source
    # Rows above and below are read in vectors, each once.
    assert source.count("(const float4*)(x + block * 1024 + vector * 512 + thread * 4 - 1024)") == 1
    assert source.count("(const float4*)(x + block * 1024 + vector * 512 + thread * 4 + 1024)") == 1
