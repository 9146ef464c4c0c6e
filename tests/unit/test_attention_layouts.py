"""What attention takes and gives lies as torch's libraries have it, without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops.fallback import TorchCall
from tests.conformance import gpu
from tests.emulator import emulator

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

TOKENS_FIRST = (0, 2, 1, 3)
BATCH, TOKENS, HEADS, WIDTH = 2, 256, 4, 64


def heads(x, w):
    return (x @ w).view(x.shape[0], x.shape[1], -1, WIDTH).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def plain(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def scaled(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


def masked(q, k, v):
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def with_joined_heads(q, k, v):
    return joined(F.scaled_dot_product_attention(q, k, v))


def of_any_order(q, k, v):
    """Rows of what is contiguous, which no part of the other order is."""
    return F.scaled_dot_product_attention(q, k, v).reshape(-1, q.shape[2] * WIDTH).softmax(-1)


def with_rotations(x, wq, wk, wv, cos, sin):
    q, k, v = heads(x, wq), heads(x, wk), heads(x, wv)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def with_norms(x, wq, wk, wv, cos, sin):
    q, k = (F.rms_norm(heads(x, w), (WIDTH,), cos[0]) for w in (wq, wk))
    return joined(F.scaled_dot_product_attention(q, k, heads(x, wv)))


def with_a_cache(x, wq, wk, wv, cos, sin):
    q, k, v = heads(x, wq), heads(x, wk), heads(x, wv)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    return F.scaled_dot_product_attention(q, k, v), k, v


def with_logits(x, wq, wk, wv, cos, sin):
    """Queries that are needed as contiguous rows as well."""
    q, k, v = rotated(heads(x, wq), cos, sin), heads(x, wk), heads(x, wv)
    return joined(F.scaled_dot_product_attention(q, k, v)), q.reshape(-1, WIDTH) @ wq[:WIDTH]


def layers(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    size = HEADS * WIDTH
    x = torch.randn(BATCH, TOKENS, size)
    weights = [torch.randn(size, size) / size**0.5 for _ in range(3)]
    rest = [torch.randn(TOKENS, WIDTH) for _ in range(2)]
    return tuple(x.to(dtype) for x in (x, *weights, *rest))


def contiguous(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(BATCH, HEADS, TOKENS, WIDTH).to(dtype) for _ in range(3))


def tokens_first(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in contiguous(dtype))


def several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def attention(program: bt.Compiled) -> TorchCall:
    inputs = program.scheduled.lowered.lowering.inputs
    calls = [x for x in inputs if isinstance(x, TorchCall)]
    [found] = [x for x in calls if x.fn is F.scaled_dot_product_attention]
    return found


def check(fn: Any, args: tuple[torch.Tensor, ...], dynamic: bool = False) -> bt.Compiled:
    program = bt.jit(target=gpu.TARGET, dynamic=dynamic)(fn).lower(*args).compile()
    found, expected = several(gpu.call(program, args)), several(fn(*args))
    rounding = torch.finfo(args[0].dtype).eps
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=8 * rounding, atol=8 * rounding)
    return program


ARGUMENTS = pytest.mark.parametrize("given", [contiguous, tokens_first], ids=lambda x: x.__name__)


KINDS = pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), (torch.float16, False), (torch.bfloat16, True)],
    ids=str,
)


@ARGUMENTS
@KINDS
def test_what_attention_gives(given: Any, dtype: torch.dtype, dynamic: bool) -> None:
    """Libraries lay out halves as the queries lie, and float32 with the tokens first."""
    args = given(dtype)
    in_order = dtype == torch.float32 or given is tokens_first
    for fn in (plain, scaled, masked, with_joined_heads, of_any_order):
        program = check(fn, args, dynamic)
        is_taken_so = attention(program).layout == TOKENS_FIRST
        assert is_taken_so == (in_order or fn is masked), fn
        if fn is plain:
            assert not program.kernels
            assert (gpu.call(program, args).stride(1) == WIDTH) == in_order
        if fn is with_joined_heads:
            assert len(program.kernels) == (0 if in_order else 1)


@KINDS
@pytest.mark.parametrize(
    ("fn", "count"),
    [(with_rotations, 2), (with_norms, 2), (with_a_cache, 3), (with_logits, 2)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_attention_takes(fn: Any, count: int, dtype: torch.dtype, dynamic: bool) -> None:
    args = layers(dtype)
    program = check(fn, args, dynamic)
    assert len(program.kernels) == count
    assert attention(program).layout == TOKENS_FIRST


@ARGUMENTS
@pytest.mark.parametrize("fn", [plain, scaled, with_joined_heads])
def test_gradients(fn: Any, given: Any) -> None:
    args = tuple(x.requires_grad_() for x in given(torch.float32))
    expected = fn(*args)
    program = bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()
    grad = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, args, grad)
    torch.testing.assert_close(gpu.gradients(program, args, {0: grad}), theirs)


def test_gradients_of_layers() -> None:
    args = tuple(x.requires_grad_() for x in layers(torch.float32))
    expected = with_rotations(*args)
    program = bt.jit(target=gpu.TARGET)(with_rotations).lower(*args).compile()
    grad = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, args, grad)
    ours = gpu.gradients(program, args, {0: grad})
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_what_is_written_to_afterwards() -> None:
    def changed(q, k, v):
        found = F.scaled_dot_product_attention(q, k, v)
        found[:, 1] = 0
        return found, found.sum(-1)

    for given in (contiguous, tokens_first):
        check(changed, given(torch.float32))
        check(changed, given(torch.float16))


def test_operands_by_name_in_any_order() -> None:
    def by_name(x, wq, wk, wv, cos, sin):
        q, k, v = heads(x, wq) * cos, heads(x, wk), heads(x, wv)
        return joined(F.scaled_dot_product_attention(value=v, key=k, query=q))

    program = check(by_name, layers(torch.float16))
    assert len(program.kernels) == 1
    assert attention(program).layout == TOKENS_FIRST


@pytest.mark.parametrize("shape", [(0, 4, 4, 8), (2, 4, 0, 8)], ids=str)
def test_of_no_elements(shape: tuple[int, ...]) -> None:
    """No kernel of ours is launched for them."""

    def of_none(q):
        first = F.scaled_dot_product_attention(q, q, q)
        return F.scaled_dot_product_attention(first * 2, first, first).transpose(1, 2)

    program = check(of_none, (torch.randn(shape),))
    assert not program.kernels


def test_kernels_tell_what_they_compute() -> None:
    """And not that attention takes it in another order."""
    text = check(with_rotations, layers(torch.bfloat16)).source()
    assert "return x * cos + torch.cat((-b, a), -1) * sin" in text
    assert "scaled_dot_product_attention" not in text
    assert "permute" not in text


def test_one_tensor_as_queries_keys_and_values() -> None:
    """It is written once, also where gradients are asked for."""

    def of_itself(x, w, cos):
        q = heads(x, w) * cos
        return joined(F.scaled_dot_product_attention(q, q, q))

    x, w, *_, cos, _ = layers(torch.float32)
    for args in ((x, w, cos), (x.requires_grad_(), w.requires_grad_(), cos)):
        program = bt.jit(target=gpu.TARGET)(of_itself).lower(*args).compile()
        assert program.source().count("__restrict__") == 3
        given = tuple(each.detach() for each in args)
        torch.testing.assert_close(
            gpu.call(program, given), of_itself(*given), rtol=1e-5, atol=1e-5
        )


def test_one_tensor_and_a_transpose_of_it() -> None:
    def of_its_transpose(q, k, v):
        scores = q * k
        return F.scaled_dot_product_attention(scores, scores.transpose(2, 3), scores)

    torch.manual_seed(0)
    args = tuple(torch.randn(2, 4, 64, 64) for _ in range(3))
    check(of_its_transpose, args)
    given = tuple(x.requires_grad_() for x in args)
    program = bt.jit(target=gpu.TARGET)(of_its_transpose).lower(*given).compile()
    expected = of_its_transpose(*given)
    grad = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, given[:2], grad)
    ours = gpu.gradients(program, given, {0: grad})
    torch.testing.assert_close(tuple(ours)[:2], theirs, rtol=1e-4, atol=1e-4)
