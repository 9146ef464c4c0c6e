"""What is given in one shape is taken in another one without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

X, W = torch.randn(4, 128, 256), torch.randn(256, 192) / 16
HEADS = torch.randn(2, 4, 128, 32)
IMAGES, FILTERS = torch.randn(2, 8, 20, 20), torch.randn(16, 8, 3, 3) / 8


def rows(x, w):
    return (x.view(-1, x.shape[-1]) @ w).view(x.shape[0], x.shape[1], -1)


def heads(x, w):
    return (x.view(-1, x.shape[-1]) @ w).view(x.shape[0], x.shape[1], 6, -1)


def tokens(q, k):
    attended = F.scaled_dot_product_attention(q, k, k)
    return attended.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def beside_others(x, w):
    product = x.view(-1, x.shape[-1]) @ w
    return (x * 2).sum(-1), product.view(x.shape[0], -1, w.shape[1])


def features(x, w):
    return F.conv2d(x, w).flatten(1)


def in_channels_last(x, w):
    return F.conv2d(x.contiguous(memory_format=torch.channels_last), w).flatten(2)


def several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


CASES = pytest.mark.parametrize(
    ("fn", "args", "kernels"),
    [
        (rows, (X, W), 0),
        (heads, (X, W), 0),
        (tokens, (HEADS, HEADS), 0),
        (beside_others, (X, W), 1),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)


@needs_gpu
@CASES
@pytest.mark.parametrize("dynamic", [False, True])
def test_on_gpus(fn: Any, args: Any, kernels: int, dynamic: bool) -> None:
    program = bt.jit(target=gpu.TARGET, dynamic=dynamic)(fn).lower(*args).compile()
    assert len(program.kernels) == kernels
    torch.testing.assert_close(gpu.call(program, args), fn(*args), rtol=1e-4, atol=1e-4)


@needs_gpu
@CASES
def test_gradients_on_gpus(fn: Any, args: Any, kernels: int) -> None:
    given = tuple(x.clone().requires_grad_() for x in args)
    expected = several(fn(*given))
    program = bt.jit(target=gpu.TARGET)(fn).lower(*given).compile()
    grads = {n: torch.randn_like(x) for n, x in enumerate(expected)}
    theirs = torch.autograd.grad(expected, given, list(grads.values()))
    ours = gpu.gradients(program, given, grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert len(program.kernels) == kernels
    assert fn not in (rows, heads) or program.backward.kernels == ()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [features, in_channels_last])
def test_on_the_cpu(fn: Callable[..., Any], dynamic: bool) -> None:
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    for n in (2, 3):
        x = torch.randn(n, *IMAGES.shape[1:])
        found = compiled(x, FILTERS)
        torch.testing.assert_close(found, fn(x, FILTERS), rtol=1e-4, atol=1e-4)
        assert found.is_contiguous()
    program = compiled.lower(IMAGES, FILTERS).compile()
    assert len(program.kernels) == (0 if fn is features else 1)


def test_a_size_that_varies_alone() -> None:
    compiled = bt.jit("cpu")(features)
    for n in (2, 3, 4):
        x = torch.randn(n, *IMAGES.shape[1:])
        torch.testing.assert_close(compiled(x, FILTERS), features(x, FILTERS), rtol=1e-4, atol=1e-4)
    with pytest.raises(bt.CompileError):
        compiled(torch.randn(2, 7, 20, 20), FILTERS)


def test_results_may_be_written_to() -> None:
    """They are no views to autograd, which would refuse that."""
    x = IMAGES.clone().requires_grad_()
    found = bt.jit("cpu")(features)(x, FILTERS)
    found.mul_(2)
    found.sum().backward()
    other = IMAGES.clone().requires_grad_()
    features(other, FILTERS).mul(2).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-4)
    plain = bt.jit("cpu")(features)(IMAGES, FILTERS)
    assert not plain._is_view()


def read_elsewhere(x, w):
    made = F.conv2d(x, w)
    return made.flatten(1), made


def read_by_a_kernel(x, w):
    made = F.conv2d(x, w)
    return made.flatten(1), made.amax()


def in_two_shapes(x, w):
    made = F.conv2d(x, w)
    return made.flatten(1), made.flatten(2)


@pytest.mark.parametrize("fn", [read_elsewhere, read_by_a_kernel, in_two_shapes])
def test_results_are_apart(fn: Callable[..., Any]) -> None:
    found = bt.jit("cpu")(fn)(IMAGES, FILTERS)
    torch.testing.assert_close(found, fn(IMAGES, FILTERS), rtol=1e-4, atol=1e-4)
    assert found[0].untyped_storage().data_ptr() != found[1].untyped_storage().data_ptr()


def test_what_an_operator_returns_of_its_arguments_is_copied() -> None:
    def same(x):
        return x

    bt.register(same)

    def flat(x):
        return same(x).flatten()

    x = torch.randn(3, 4)
    found = bt.jit("cpu")(flat)(x)
    assert torch.equal(found, x.flatten())
    found.zero_()
    assert x.abs().sum() > 0


def test_in_memory_that_a_virtual_machine_keeps() -> None:
    """What writes as much is run by one."""

    def of_two(x, w):
        return F.conv2d(x, w).flatten(1), torch.exp(x)

    x = torch.randn(16, 8, 200, 200)
    compiled = bt.jit("cpu")(of_two)
    first = compiled(x, FILTERS)
    second = compiled(x + 1, FILTERS)
    torch.testing.assert_close(first, of_two(x, FILTERS), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, of_two(x + 1, FILTERS), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- what kernels give


def launches(compiled: Any) -> int:
    """How many kernels the newest program runs."""
    lines, _ = compiled._specializations.newest.runner._launcher.lines({})
    return sum(line.lstrip().startswith("kernel_") for line in lines)


def with_its_rows(x, w):
    """The product's result is read in its own shape as well."""
    product = x.view(-1, x.shape[-1]) @ w
    return product.view(*x.shape[:-1], -1), product.sum(-1)


def twice(x, w):
    product = x.view(-1, x.shape[-1]) @ w
    return product.view(*x.shape[:-1], -1), product.view(-1)


def in_a_branch(x, w):
    found = x.view(-1, x.shape[-1]) @ w
    if x.sum() > 0:
        found = (found.view(*x.shape[:-1], -1) @ w.T).view(-1, x.shape[-1])
    return found.sum()


def in_a_loop(x, w):
    for _ in range(int(x[0, 0, 0].abs() * 0) + 3):
        x = (torch.tanh(x).view(-1, x.shape[-1]) @ w[:, : x.shape[-1]]).view(x.shape)
    return x


@pytest.mark.parametrize(
    ("fn", "kernels"),
    [(rows, 1), (with_its_rows, 3), (twice, 3), (in_a_branch, None), (in_a_loop, None)],
    ids=lambda x: getattr(x, "__name__", ""),
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_kernels_give(fn: Any, kernels: int | None, dynamic: bool) -> None:
    compiled = bt.jit("cpu", dynamic=dynamic)(fn)
    w = torch.randn(256, 256) / 16
    before = X.clone()
    for x in (X, X[:3], X[:, :64].contiguous()):
        found, expected = several(compiled(x, w)), several(fn(x, w))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        again = several(compiled(x, w))
        assert all(torch.equal(one, other) for one, other in zip(found, again))
        for one, other in zip(found, again):
            one.zero_()
            assert other.abs().sum() > 0
    assert torch.equal(X, before)
    assert kernels is None or dynamic or launches(compiled) == kernels


def test_what_is_written_to_after_it_was_read_in_another_shape() -> None:
    def changed(x, w):
        product = x.view(-1, x.shape[-1]) @ w
        x.zero_()
        return product.view(*x.shape[:-1], -1)

    given = [X.clone(), X.clone()]
    found = bt.jit("cpu")(changed)(given[0], W)
    torch.testing.assert_close(found, changed(given[1], W), rtol=1e-3, atol=1e-3)
    assert torch.equal(*given)
