"""Tensors between the arguments and the results lie as what they are computed from does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops.fallback import TorchCall
from tests.conformance import gpu
from tests.emulator import emulator

GROUPS, CHANNELS = 4, 16
LAST = (0, 2, 3, 1)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(channels: int = CHANNELS, seed: int = 0, batch: int = 2) -> torch.Tensor:
    found = numbers(batch, channels, 6, 10, seed=seed)
    return found.to(memory_format=torch.channels_last)


def weight(size: int = 3, channels: int = CHANNELS) -> torch.Tensor:
    found = numbers(channels, channels, size, size, seed=1) / 10
    return found.to(memory_format=torch.channels_last)


def normed(x, g, b):
    return F.silu(F.group_norm(x, GROUPS, g, b))


def by_hand(x, g, b):
    wide = x.double() if x.dtype is torch.float64 else x.float()
    rows = wide.reshape(x.shape[0], GROUPS, -1, *x.shape[2:])
    variance, mean = torch.var_mean(rows, (2, 3, 4), correction=0, keepdim=True)
    found = ((rows - mean) * torch.rsqrt(variance + 1e-5)).reshape(x.shape)
    return torch.relu(found * g[:, None, None] + b[:, None, None]).to(x.dtype)


def over_channels(x, g, b):
    rest = x - x.mean(1, keepdim=True)
    found = rest * torch.rsqrt((rest * rest).mean(1, keepdim=True) + 1e-6)
    return found * g[:, None, None] + b[:, None, None]


def softmax(x):
    return x.softmax(1)


def chosen(x):
    return F.relu(x)[:, [3, 1, 2]]


def pooled(x):
    return F.max_pool2d(F.relu(x), 2)


def averaged(x):
    return F.avg_pool2d(x, 2) * 2


def larger(x):
    return F.interpolate(F.silu(x), scale_factor=2, mode="nearest")


def joined(x, y):
    return F.silu(torch.cat([x, y], 1))


def padded(x):
    return F.pad(x * x, (0, 1, 2, 0)) + 1


def part(x):
    return F.relu(x[:, 3:9, 1:])


def tokens(x):
    return F.relu(x).flatten(2).transpose(1, 2)


PARAMETERS = numbers(CHANNELS, seed=2), numbers(CHANNELS, seed=3)


@pytest.mark.parametrize(
    ("fn", "args", "kernels"),
    [
        (normed, (images(), *PARAMETERS), 1),
        (by_hand, (images(), *PARAMETERS), 1),
        (over_channels, (images(), *PARAMETERS), 1),
        (softmax, (images(),), 1),
        (chosen, (images(),), 1),
        (pooled, (images(),), 1),
        (averaged, (images(),), 1),
        (larger, (images(),), 1),
        (joined, (images(), images(8, 4)), 1),
        (padded, (images(),), 1),
        (part, (images(),), 1),
        (tokens, (images(),), 1),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_images_stay_in_their_format_where_torchs_do(
    fn: Callable[..., Any], args: tuple[torch.Tensor, ...], kernels: int, dtype: torch.dtype
) -> None:
    exact = fn(*(x.to(dtype).double() for x in args))
    args = tuple(x.to(dtype) for x in args)
    within = (
        {"rtol": 1e-5, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 4e-3, "atol": 4e-3}
    )
    jitted = bt.jit("cpu")(fn)
    for _ in range(3):
        found = jitted(*args)
        torch.testing.assert_close(found.double(), exact, **within)
        assert found.stride() == fn(*args).stride()
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    assert len(compiled.kernels) == kernels
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.call(compiled, args)
        torch.testing.assert_close(found.double(), exact, **within)


def test_kernels_load_what_lies_side_by_side() -> None:
    args = [x.half() for x in (images(64), numbers(64, seed=2), numbers(64, seed=3))]
    source = bt.jit(gpu.TARGET)(normed).lower(*args).compile().source("cuda")
    assert "*(const uint4*)(x +" in source
    assert "*(uint4*)(normed +" in source


def block(x, g, b, w, t):
    h = F.conv2d(normed(x, g, b), w, padding=1)
    h = h + t[:, :, None, None]
    h = F.conv2d(normed(h, g, b), w, b, padding=1)
    return x + h


def bottleneck(x, v, w):
    return F.relu(x + F.conv2d(F.relu(F.conv2d(x, v)), w, padding=1))


BOTTLENECK = images(128), weight(1, 128), weight(3, 128).contiguous()


def arguments_of_block() -> tuple[torch.Tensor, ...]:
    return images(), *PARAMETERS, weight(), numbers(2, CHANNELS, seed=5)


def test_convolutions_give_and_take_images_as_they_lie() -> None:
    args = arguments_of_block()
    compiled = bt.jit(gpu.TARGET)(block).lower(*args).compile()
    calls = [x for x in compiled.scheduled.lowered.lowering.inputs if isinstance(x, TorchCall)]
    assert [call.layout for call in calls] == [LAST, LAST]
    inverse = (0, 3, 1, 2)
    assert all(call.turns[:2] == (inverse, inverse) for call in calls)
    assert len(compiled.kernels) == 3
    exact = block(*(x.double() for x in args))
    found = gpu.call(compiled, args)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    assert found.stride() == block(*args).stride()


def test_convolutions_have_the_format_of_their_input() -> None:
    args = BOTTLENECK
    compiled = bt.jit(gpu.TARGET)(bottleneck).lower(*args).compile()
    calls = [x for x in compiled.scheduled.lowered.lowering.inputs if isinstance(x, TorchCall)]
    assert [call.layout for call in calls] == [LAST, LAST]
    exact = bottleneck(*(x.double() for x in args))
    torch.testing.assert_close(gpu.call(compiled, args).double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [block, bottleneck])
def test_networks_on_the_cpu(fn: Callable[..., Any]) -> None:
    args = arguments_of_block() if fn is block else BOTTLENECK
    exact = fn(*(x.double() for x in args))
    jitted = bt.jit("cpu")(fn)
    for _ in range(3):
        found = jitted(*args)
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
        assert found.stride() == fn(*args).stride()


@pytest.mark.parametrize("fn", [block, normed, by_hand, over_channels])
def test_gradients_of_images(fn: Callable[..., Any]) -> None:
    args = arguments_of_block()[: fn.__code__.co_argcount]
    leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in args]
    exact = [x.double().detach().requires_grad_() for x in args]
    seed = numbers(*images().shape, seed=7)
    (bt.jit("cpu")(fn)(*leaves) * seed).sum().backward()
    (fn(*exact) * seed.double()).sum().backward()
    for ours, theirs in zip(leaves, exact):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [True, None])
def test_images_of_any_sizes(dynamic: bool | None) -> None:
    jitted = bt.jit("cpu", dynamic=dynamic)(block)
    _, *rest, _ = arguments_of_block()
    for batch, height in ((2, 6), (3, 6), (2, 8), (4, 9), (2, 6)):
        x = numbers(batch, CHANNELS, height, 10).to(memory_format=torch.channels_last)
        args = x, *rest, numbers(batch, CHANNELS, seed=5)
        exact = block(*(x.double() for x in args))
        for _ in range(2):
            torch.testing.assert_close(jitted(*args).double(), exact, rtol=1e-4, atol=1e-4)


def test_columns_of_groups_are_summed_as_precisely_as_rows() -> None:
    x = numbers(2, 4096, 4, 3) + 3
    exact = x.double().var((1, 3))
    found = bt.jit("cpu")(lambda x: x.var((1, 3)))(x)
    torch.testing.assert_close(found.double(), exact, rtol=3e-6, atol=0)
    total = bt.jit("cpu")(lambda x: x.sum((1, 3)))(x)
    torch.testing.assert_close(total.double(), x.double().sum((1, 3)), rtol=3e-6, atol=0)


@pytest.mark.parametrize(
    ("fn", "kernels"),
    [
        (lambda x: x.softmax(-1), 1),
        (lambda x: F.rms_norm(x, (64,)), 1),
        (lambda x: (x * x).sum(0), 1),
        (lambda x: F.relu(x) @ x.mT, 1),
        (lambda x: torch.cumsum(F.relu(x), -1), 2),
    ],
    ids=["softmax", "rms_norm", "sum", "product", "cumsum"],
)
def test_nothing_is_copied_for_results_that_are_contiguous(
    fn: Callable[..., Any], kernels: int
) -> None:
    x = numbers(64, 50).t()
    assert len(bt.jit(gpu.TARGET)(fn).lower(x).schedule().kernels) == kernels
    found = bt.jit("cpu")(fn)(x)
    torch.testing.assert_close(found.double(), fn(x.double()), rtol=1e-5, atol=1e-5)


def test_kernels_tell_their_lines_and_names() -> None:
    compiled = bt.jit(gpu.TARGET)(pooled).lower(images()).compile()
    assert "return F.max_pool2d(F.relu(x), 2)" in compiled.source("cuda")

    def normed_and_pooled(x, g, b):
        y = F.group_norm(x, GROUPS, g, b)
        return F.max_pool2d(F.silu(y), 2)

    compiled = bt.jit(gpu.TARGET)(normed_and_pooled).lower(images(), *PARAMETERS).compile()
    assert "T_reshape" not in compiled.source("cuda")
