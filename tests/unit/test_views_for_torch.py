"""What torch runs inside a program is given parts of tensors as they lie, and gives results so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops.fallback import TorchCall
from babytriton.ops.views import View
from tests.conformance import gpu
from tests.emulator import emulator

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

BATCH, TOKENS, HEADS, WIDTH = 2, 256, 8, 512


def heads(t):
    return t.reshape(BATCH, TOKENS, HEADS, -1).transpose(1, 2)


def joined(a):
    return a.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)


def unbound(x, w, wo):
    qkv = (x @ w).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)) @ wo


def in_chunks(x, w, wo):
    q, k, v = map(heads, (x @ w).chunk(3, -1))
    return joined(F.scaled_dot_product_attention(q, k, v)) @ wo


def changed(x, w, wo):
    """What is written to is no longer what the product gave."""
    qkv = x @ w
    q, k, v = (heads(qkv[..., n * WIDTH : (n + 1) * WIDTH]) for n in range(3))
    k.mul_(2)
    return joined(F.scaled_dot_product_attention(q, k, v)) @ wo


def read_twice(x, w, wo):
    q, k, v = map(heads, (x @ w).chunk(3, -1))
    a = F.scaled_dot_product_attention(q, k, v)
    return joined(a * 2) @ wo, a.amax(-1), q.exp()


def arguments(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, TOKENS, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH)
    drawn = [torch.randn(shape) for shape in shapes]
    scaled = [drawn[0], *(x * WIDTH**-0.5 for x in drawn[1:])]
    return [x.to(dtype).requires_grad_() for x in scaled]


@pytest.mark.parametrize("fn", [unbound, in_chunks, changed, read_twice])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    args = arguments(dtype)
    expected = fn(*args)
    several = expected if isinstance(expected, tuple) else (expected,)
    program = bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()
    assert {call.name for call in program.fallbacks} == {"matmul", "scaled_dot_product_attention"}
    found = gpu.call(program, tuple(x.detach() for x in args))
    grads = {n: torch.randn_like(x).detach() for n, x in enumerate(several)}
    theirs = torch.autograd.grad(several, args, list(grads.values()))
    ours = gpu.gradients(program, tuple(args), grads)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    results = found if isinstance(found, tuple) else (found,)
    for one, other in zip((*results, *ours), (*several, *theirs), strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * largest)


@pytest.mark.parametrize("fn", [unbound, in_chunks])
def test_nothing_is_copied(fn: Callable[..., Any]) -> None:
    args = [x.detach() for x in arguments(torch.float32)]
    assert bt.jit(target=gpu.TARGET)(fn).lower(*args).compile().kernels == ()


@pytest.mark.parametrize("fn", [unbound, in_chunks])
def test_gradients_of_parts_are_put_together_by_one_kernel(fn: Callable[..., Any]) -> None:
    program = bt.jit(target=gpu.TARGET)(fn).lower(*arguments(torch.float32)).compile()
    assert program.kernels == ()
    assert len(program.backward.kernels) == 1


def test_a_view_of_what_lies_otherwise() -> None:
    x = torch.randn(6, 4).T
    view = View((2, 4, 3), (1, 6, 2), 0)
    call = TorchCall(torch.clone, (x,), {}, (), views=(view,))
    assert call.views == (view,)
    assert torch.equal(view.of(x), x.contiguous().view(4, 3, 2).permute(2, 0, 1))


def given_as_they_lie(x, w):
    q, k, v = (x @ w).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v)


def test_arguments_that_are_not_contiguous() -> None:
    x, w, _ = (x.detach() for x in arguments(torch.float32))
    x, w = x.transpose(0, 1).contiguous().transpose(0, 1), w.T.contiguous().T
    program = bt.jit(target=gpu.TARGET)(given_as_they_lie).lower(x, w).compile()
    torch.testing.assert_close(gpu.call(program, (x, w)), given_as_they_lie(x, w))


def test_sizes_that_a_call_tells() -> None:
    fn = bt.jit(target=gpu.TARGET, dynamic=True)(dynamic_heads)
    x, w = torch.randn(3, 200, WIDTH), torch.randn(WIDTH, 3 * WIDTH)
    program = fn.lower(x, w).compile()
    torch.testing.assert_close(gpu.call(program, (x, w)), dynamic_heads(x, w))


def dynamic_heads(x, w):
    q, k, v = (x @ w).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


SIDE = 512


def turned_outside(x, w, n):
    """A transpose that a branch reads is what gradients flow to, not what it is made from."""
    t = (x @ w).T
    z = t @ w if n.sum() > 0 else t @ x
    return z * 2


def turned_outside_a_loop(x, w, n):
    t, z, i = (x @ w).T, x + w, 0
    while n[i] > 0:
        z = t @ z
        i = i + 1
    return z


def parts_in_a_branch(x, w, n):
    q, k = (x @ w).chunk(2, 1)
    z = q.T @ k if n.sum() > 0 else k.T @ q
    return z @ w[: SIDE // 2]


def heads_in_a_branch(x, w, n):
    y = (x @ w).view(2, SIDE // 2, 2, HEADS, -1).permute(2, 0, 3, 1, 4)
    q, k = y.unbind(0)
    if n.sum() > 0:
        a = F.scaled_dot_product_attention(q, k, k)
    else:
        a = F.scaled_dot_product_attention(k, q, k, is_causal=True)
    return a.transpose(1, 2).reshape(SIDE, -1)


@pytest.mark.parametrize(
    "fn", [turned_outside, turned_outside_a_loop, parts_in_a_branch, heads_in_a_branch]
)
@pytest.mark.parametrize("target", [gpu.TARGET, "cpu"], ids=["gpu", "cpu"])
@pytest.mark.parametrize("runs", [1.0, -1.0])
def test_gradients_through_parts_that_the_run_decides_on(
    fn: Callable[..., Any], target: Any, runs: float
) -> None:
    torch.manual_seed(0)
    x, w = ((torch.randn(SIDE, SIDE) / 20).requires_grad_() for _ in range(2))
    args = x, w, torch.tensor([runs, runs, -1.0])
    expected = fn(*args)
    grad = torch.randn_like(expected).detach()
    theirs = torch.autograd.grad(expected, (x, w), grad)
    jitted = bt.jit(target)(fn)
    if target == "cpu":
        found = torch.autograd.grad(jitted(*args), (x, w), grad)
    else:
        found = gpu.gradients(jitted.lower(*args).compile(), args, {0: grad})
    for ours, other in zip(found, theirs, strict=True):
        bound = 1e-5 * other.abs().max().item()
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=bound)


def other_numbers(x, w, v):
    """The same memory of another dtype is no view."""
    return (x @ w).view(torch.bfloat16)[:, :SIDE] @ v


def test_memory_of_another_dtype() -> None:
    x, w = (torch.randn(SIDE, SIDE, dtype=torch.float16) for _ in range(2))
    v = torch.eye(SIDE, dtype=torch.bfloat16)
    program = bt.jit(target=gpu.TARGET)(other_numbers).lower(x, w, v).compile()
    found = gpu.call(program, (x, w, v))
    torch.testing.assert_close(found, other_numbers(x, w, v), rtol=0, atol=0, equal_nan=True)


def flat(x, w):
    return F.linear(x.view(-1, x.shape[-1]), w)


def one_of_several(x, w, n: int):
    return x @ w[n]


def halves_of_rows(x, w):
    a, b = x.chunk(2, -1)
    return a @ w + b @ w


def heads_of_arguments(p, w):
    q, k, v = p.view(BATCH, -1, 3, HEADS, 16).permute(2, 0, 3, 1, 4)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return a.transpose(1, 2).flatten(2) @ w


def sorted_rows(x):
    return x.view(-1, 64).sort(dim=-1, stable=True).values


def added_to_rows(x, rows, new):
    return x[1].index_add(0, rows, new)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


OF_ARGUMENTS = {
    "flat": (flat, (drawn(2, 300, 64), drawn(128, 64)), 0),
    "one_of_several": (one_of_several, (drawn(500, 64), drawn(3, 64, 128), 1), 0),
    "halves_of_rows": (halves_of_rows, (drawn(500, 128), drawn(64, 96)), 1),
    "heads_of_arguments": (
        heads_of_arguments,
        (drawn(BATCH, 100, 3 * HEADS * 16), drawn(HEADS * 16, 64)),
        0,
    ),
    "sorted_rows": (sorted_rows, (drawn(3, 500, 64),), 0),
    "added_to_rows": (
        added_to_rows,
        (drawn(2, 500, 64), torch.arange(600) * 7 % 500, drawn(600, 64)),
        0,
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_views_of_arguments_are_not_copied(name: str, dynamic: bool) -> None:
    fn, args, kernels = OF_ARGUMENTS[name]
    program = bt.jit(target=gpu.TARGET, dynamic=dynamic)(fn).lower(*args).compile()
    found = gpu.call(program, args)
    torch.testing.assert_close(found, fn(*args), rtol=1e-4, atol=1e-4)
    if not dynamic or name not in ("sorted_rows", "added_to_rows"):
        assert len(program.kernels) == kernels


@pytest.mark.parametrize("name", ["flat", "one_of_several", "halves_of_rows", "heads_of_arguments"])
def test_gradients_of_views_of_arguments(name: str) -> None:
    fn, given, _ = OF_ARGUMENTS[name]
    args = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for x in given]
    expected = fn(*args)
    grad = torch.randn_like(expected).detach()
    theirs = torch.autograd.grad(expected, [x for x in args if isinstance(x, torch.Tensor)], grad)
    program = bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()
    for ours, other in zip(gpu.gradients(program, tuple(args), {0: grad}), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)


def test_a_view_of_an_argument_that_lies_otherwise() -> None:
    x, w = drawn(300, 2, 64).transpose(0, 1), drawn(64, 128).T
    program = bt.jit(target=gpu.TARGET)(lambda x, w: F.linear(x.reshape(-1, 64), w)).lower(x, w)
    expected = F.linear(x.reshape(-1, 64), w)
    torch.testing.assert_close(gpu.call(program.compile(), (x, w)), expected)


def written_after(x, w):
    """The product is of what the argument was."""
    y = x[1] @ w
    x.mul_(2)
    return y, x[1] @ w


def test_an_argument_that_is_written_to() -> None:
    x, w = drawn(2, 300, 64), drawn(64, 128)
    ours, theirs = x.clone(), x.clone()
    program = bt.jit(target=gpu.TARGET)(written_after).lower(ours, w).compile()
    torch.testing.assert_close(gpu.call(program, (ours, w)), written_after(theirs, w))
    torch.testing.assert_close(ours, theirs)


def from_the_second(x, w):
    return x[:, 1:] @ w


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 0), (torch.bfloat16, 1)])
def test_halves_that_libraries_could_not_load_as_vectors(dtype: torch.dtype, copies: int) -> None:
    x, w = drawn(512, 65).to(dtype), drawn(64, 512).to(dtype)
    program = bt.jit(target=gpu.TARGET)(from_the_second).lower(x, w).compile()
    assert len(program.kernels) == copies
    torch.testing.assert_close(gpu.call(program, (x, w)), from_the_second(x, w))


def by_address(x):
    return x.as_strided((3, 8), (4, 1), 5).sort(dim=-1, stable=True).values


def part_by_address(x):
    return x.as_strided((4, 8), (4, 1), 5)[1:].sort(dim=-1, stable=True).values


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [by_address, part_by_address])
def test_places_that_count_from_the_start_of_the_memory(fn, dynamic: bool) -> None:
    x = drawn(400)[3:99].view(2, 6, 8)
    assert torch.equal(bt.jit("cpu", dynamic=dynamic)(fn)(x), fn(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_arguments_that_begin_within_a_memory(dynamic: bool) -> None:
    def rows(x):
        return x[1].sort(dim=-1, stable=True).values, x.view(-1, 4)[2:].sort(dim=-1).values

    x = drawn(400)[3:99].view(2, 6, 8)
    for ours, theirs in zip(bt.jit("cpu", dynamic=dynamic)(rows)(x), rows(x)):
        assert torch.equal(ours, theirs)


def test_operands_that_torch_may_write_to_are_no_parts_of_arguments() -> None:
    def limited(at, w):
        return F.embedding(at, w[1], max_norm=0.5)

    at, w = torch.tensor([0, 2]), drawn(2, 4, 8)
    before = w.clone()
    torch.testing.assert_close(bt.jit("cpu")(limited)(at, w), limited(at, w.clone()))
    assert torch.equal(w, before)


TURNS = {
    "transposed": lambda x: x.mT,
    "last axis first": lambda x: x.permute(2, 0, 1),
    "reversed": lambda x: x.permute(2, 1, 0),
}
VIEWS = {
    "one of it": lambda x: x[1],
    "a slice": lambda x: x[:, 2:, 1::2],
    "a diagonal": lambda x: x.diagonal(dim1=0, dim2=2),
    "expanded": lambda x: x[0, :, None, :].expand(-1, 3, -1),
    "reshaped": lambda x: x.reshape(2, -1)[1],
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("seen", VIEWS)
def test_a_view_of_what_is_turned(turn: str, seen: str) -> None:
    """Where nothing is copied, it lies in the memory of what was turned."""
    x = drawn(4, 6, 8)
    turned = TURNS[turn](x)
    whole = turned.contiguous()
    part = VIEWS[seen](whole)
    view = View(tuple(part.shape), part.stride(), part.storage_offset(), tuple(whole.shape))
    made = sorted(range(3), key=lambda n: -turned.stride(n))
    axes = [made.index(n) for n in range(3)]
    found = view.turned(axes)
    assert (found is None) == (seen in ("a diagonal", "reshaped"))
    if found is not None:
        assert torch.equal(found.of(x), part)
        assert found.of(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_calls_see_parts_of_what_is_turned() -> None:
    call = TorchCall(torch.clone, (), {}, (), views=(View((6, 4), (4, 1), 24, (8, 6, 4)),))
    turned = call.turning({0: (2, 1, 0)})
    assert turned.turns == ()
    assert turned.views == (View((6, 4), (8, 48), 1, (4, 6, 8)),)


def experts(x, w):
    return x @ w[1]


def test_experts_that_are_given_transposed() -> None:
    x, w = drawn(500, 64), drawn(3, 128, 64).mT
    program = bt.jit(target=gpu.TARGET)(experts).lower(x, w).compile()
    assert program.kernels == ()
    torch.testing.assert_close(gpu.call(program, (x, w)), experts(x, w), rtol=1e-4, atol=1e-4)
