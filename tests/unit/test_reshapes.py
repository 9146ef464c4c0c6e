"""Reshapes before, between and after what goes along rows: no kernel of their own, and no copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

on_gpu = pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")


def sums(x):
    return (x * 2).flatten(1).sum(1)


def softmax_of_all(x):
    return x.flatten(1).softmax(1).view_as(x) + 1


def norm_of_heads(x):
    return F.rms_norm(x.unflatten(-1, (4, -1)), (x.shape[-1] // 4,)).flatten(-2)


def norm_of_rows(x):
    return F.rms_norm(x.reshape(-1, x.shape[-1]), (x.shape[-1],)).reshape(x.shape)


def residual(x):
    """The argument is read under both shapes."""
    rows = x.view(-1, x.shape[-1])
    return x + (rows - rows.mean(-1, keepdim=True)).view_as(x) * x


def groups(x, w, b):
    return F.silu(F.group_norm(x, 2, w, b))


def instances(x):
    return F.instance_norm(x)


def quantized(x):
    blocks = x.reshape(x.shape[0], -1, 8)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return (blocks / scale).round().clamp(-128, 127).to(torch.int8).view_as(x), scale.squeeze(-1)


def gated(x, gate):
    """What follows the reshape reads another argument, too."""
    return F.softmax(x.unflatten(-1, (4, -1)), -1).flatten(-2) * torch.sigmoid(gate)


def masked(x):
    """The numbers of columns are told by two axes."""
    rows = x.flatten(-2)
    kept = torch.arange(rows.shape[-1], device=x.device) % 3 > 0
    return torch.where(kept, rows, -1e9).softmax(-1).view_as(x)


def shifted(x):
    return x.flatten(1).log_softmax(1).view_as(x).roll(1, -1)


def both(x):
    """A result under both shapes."""
    rows = x.flatten(1).softmax(1)
    return rows, rows.view_as(x) * 2


SHAPE = (3, 4, 6, 8)
CALLS: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
    sums: (SHAPE,),
    softmax_of_all: (SHAPE,),
    norm_of_heads: ((5, 7, 32),),
    norm_of_rows: (SHAPE,),
    residual: (SHAPE,),
    groups: (SHAPE, (4,), (4,)),
    instances: (SHAPE,),
    quantized: ((5, 64),),
    gated: ((5, 7, 32), (5, 7, 32)),
    masked: (SHAPE,),
    shifted: (SHAPE,),
    both: (SHAPE,),
}
TWO = (shifted, both)
"""What is more than one kernel: other elements of a row are needed, or both shapes."""


def drawn(fn: Callable[..., Any], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in CALLS[fn]]


def close(found: Any, exact: Any, tolerance: float = 1e-5) -> None:
    pairs = zip(found, exact) if isinstance(found, tuple) else [(found, exact)]
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("fn", CALLS)
def test_values(fn: Callable[..., Any]) -> None:
    jitted, args = bt.jit("cpu")(fn), drawn(fn)
    for _ in range(4):  # some of them by a shortcut
        close(jitted(*args), fn(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fn", [softmax_of_all, norm_of_heads, residual, groups, gated])
def test_dtypes(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    args = drawn(fn, dtype)
    exact = fn(*(x.double() for x in args))
    close(bt.jit("cpu")(fn)(*args), exact, 0.05 if dtype == torch.bfloat16 else 1e-9)


@pytest.mark.parametrize("fn", CALLS)
@pytest.mark.parametrize("target", ["cpu", gpu.TARGET])
def test_one_kernel(fn: Callable[..., Any], target: Any) -> None:
    compiled = bt.jit(target)(fn).lower(*drawn(fn)).compile()
    if fn not in TWO:
        assert len(compiled.kernels) == 1


@on_gpu
@pytest.mark.parametrize("fn", CALLS)
def test_values_on_a_gpu(fn: Callable[..., Any]) -> None:
    args = drawn(fn)
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    close(gpu.call(compiled, args), fn(*args))


@pytest.mark.parametrize("fn", [fn for fn in CALLS if fn is not quantized])
def test_gradients(fn: Callable[..., Any]) -> None:
    ours, theirs = ([x.requires_grad_() for x in drawn(fn)] for _ in range(2))
    for result, args in ((bt.jit("cpu")(fn)(*ours), ours), (fn(*theirs), theirs)):
        results = result if isinstance(result, tuple) else (result,)
        weights = torch.linspace(-1, 1, results[0].numel())
        torch.autograd.backward(sum((x.reshape(-1) * weights).sum() for x in results))
        assert all(x.grad is not None for x in args)
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fn", CALLS)
def test_any_sizes(fn: Callable[..., Any]) -> None:
    jitted, args = bt.jit("cpu", dynamic=True)(fn), drawn(fn)
    close(jitted(*args), fn(*args))
    if fn is not groups:
        more = [torch.cat([x, x + 1]) for x in args]
        close(jitted(*more), fn(*more))


@pytest.mark.parametrize("fn", [sums, softmax_of_all, masked, quantized])
def test_any_number_of_rows(fn: Callable[..., Any]) -> None:
    spec = bt.Tensor(("n", *CALLS[fn][0][1:]), "float32")
    compiled = bt.jit("cpu")(fn).lower(spec).compile()
    assert len(compiled.kernels) == 1
    for count in (2, 7, 30):
        x = drawn(fn)[0].repeat(10, *[1] * (len(CALLS[fn][0]) - 1))[:count]
        close(compiled(x), fn(x))


@pytest.mark.parametrize("fn", [norm_of_rows, norm_of_heads, gated])
def test_arguments_that_lie_otherwise(fn: Callable[..., Any]) -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().transpose(0, 1)

    def part(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]]

    for laid in (turned, part):
        args = [laid(x) for x in drawn(fn)]
        torch.testing.assert_close(bt.jit("cpu")(fn)(*args), fn(*args), rtol=1e-5, atol=1e-5)


def test_written_in_place() -> None:
    def own(x):
        x.copy_(x.view(x.shape[0], -1).softmax(-1).view_as(x))

    def other(x, y):
        x += F.layer_norm(y.flatten(1), (y[0].numel(),)).view_as(x)

    for fn, count in ((own, 1), (other, 2)):
        ours, theirs = (
            [torch.linspace(-1, n, 24).view(2, 3, 4) for n in range(2, 2 + count)] for _ in range(2)
        )
        jitted = bt.jit("cpu")(fn)
        for _ in range(3):
            jitted(*ours)
            fn(*theirs)
        torch.testing.assert_close(ours, theirs)
