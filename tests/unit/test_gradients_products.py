"""Gradients of products, convolutions and attention: in half precision, and what torch runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import babytriton as bt

HALVES = (torch.float16, torch.bfloat16)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(fn: Callable[..., Any], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the sum of a result's products by numbers drawn."""
    inputs = [x.detach().clone().requires_grad_() for x in given]
    result = fn(*inputs)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(result.shape, generator=generator).to(result.dtype)
    return list(torch.autograd.grad(result, inputs, grad))


def second(fn: Callable[..., Any], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the sum of the squares of the gradients."""
    inputs = [x.detach().clone().requires_grad_() for x in given]
    first = torch.autograd.grad(fn(*inputs).square().sum(), inputs, create_graph=True)
    return list(torch.autograd.grad(sum(x.square().sum() for x in first), inputs))


def by_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, *args, **kwargs)


HALF_PRODUCTS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [(2, 17, 33), (13, 33), (13,)]),
    "linear without bias": (lambda x, w: F.linear(x, w), [(64, 48), (80, 48)]),
    "matmul": (lambda x, y: x @ y, [(31, 65), (65, 17)]),
    "matmul, broadcast": (lambda x, y: x @ y, [(3, 1, 9, 16), (2, 16, 5)]),
    "matrix by vector": (lambda x, y: x @ y, [(31, 65), (65,)]),
    "addmm": (lambda x, a, b: torch.addmm(x, a, b, alpha=0.5), [(5,), (33, 9), (9, 5)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [(2, 3, 17, 16), (2, 3, 19, 16), (2, 3, 19, 16)],
    ),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 3, 17, 16), (2, 3, 17, 16), (2, 3, 17, 16)],
    ),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF_PRODUCTS)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    fn, shapes = HALF_PRODUCTS[name]
    given = drawn(*shapes, dtype=dtype)
    found, expected = gradients(bt.jit("cpu")(fn), given), gradients(fn, given)
    exact = gradients(fn, [x.double() for x in given])
    for ours, theirs, true in zip(found, expected, exact, strict=True):
        assert ours.dtype == dtype
        # Where two roundings differ, ours may be no worse than torch's, seen from float64.
        apart = (theirs.double() - true).abs().max() + torch.finfo(dtype).eps * true.abs()
        is_near = (ours.double() - true).abs() <= 2 * apart
        assert bool((is_near | torch.isclose(ours, theirs, *_tolerances(dtype))).all())


def _tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """Those of torch.testing."""
    return (1e-3, 1e-5) if dtype == torch.float16 else (1.6e-2, 1e-5)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_cdist(p: float) -> None:
    """torch has no second gradients of it, and the conformance tests want both."""
    x, y = drawn((2, 7, 3), (5, 3))
    y[1], y[2, 1] = x[0, 2], x[1, 3, 1]

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cdist(x, y, p=p)

    torch.testing.assert_close(gradients(bt.jit("cpu")(fn), [x, y]), gradients(fn, [x, y]))


ATTENTION = {
    "plain": ({}, [(2, 3, 7, 8), (2, 3, 13, 8), (2, 3, 13, 5)]),
    "causal": ({"is_causal": True, "scale": 0.3}, [(3, 9, 4), (3, 5, 4), (3, 5, 4)]),
    "shared heads": ({"enable_gqa": True}, [(1, 6, 7, 8), (1, 2, 5, 8), (1, 2, 5, 8)]),
    "no batch": ({}, [(7, 8), (9, 8), (9, 8)]),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    options, shapes = ATTENTION[name]
    given = drawn(*shapes)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **options)

    compiled = bt.jit("cpu")(fn)
    torch.testing.assert_close(gradients(compiled, given), gradients(fn, given))
    expected = second(lambda *xs: by_math(*xs, **options), given)
    torch.testing.assert_close(second(compiled, given), expected)


@pytest.mark.parametrize("shape", [(7, 5), (2, 1, 7, 5), (2, 4, 7, 5)])
def test_masked_attention(shape: tuple[int, ...]) -> None:
    q, k, v, mask = drawn((2, 4, 7, 8), (2, 2, 5, 8), (2, 2, 5, 8), shape)
    allowed = mask > 0
    allowed[..., 3, :] = False

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True)

    def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    found = gradients(bt.jit("cpu")(fn), [q, k, v])
    assert not any(x.isnan().any() for x in found)
    assert bool((found[0][..., 3, :] == 0).all())
    torch.testing.assert_close(found, gradients(fn, [q, k, v]))
    given = [q, k, v, mask]
    torch.testing.assert_close(gradients(bt.jit("cpu")(added), given), gradients(added, given))


def test_second_gradients_of_masked_attention() -> None:
    q, k, v, mask = drawn((2, 4, 7, 8), (2, 4, 5, 8), (2, 4, 5, 8), (4, 7, 5))

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask)

    given = [q, k, v, mask]
    torch.testing.assert_close(second(bt.jit("cpu")(fn), given), second(fn, given))


def test_attention_draws_what_torch_draws() -> None:
    given = drawn((2, 4, 7, 8), (2, 2, 5, 8), (2, 2, 5, 8))

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, enable_gqa=True)

    found = []
    for each in (bt.jit("cpu")(fn), fn):
        torch.manual_seed(0)
        found.append(gradients(each, given))
    torch.testing.assert_close(*found)


MASK = torch.tensor([[False, True, True], [False, False, True], [False, False, False]])
LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "without weights": ({"batch_first": True}, {"need_weights": False}),
    "weights of each head": ({"bias": False}, {"average_attn_weights": False}),
    "dropout": ({"dropout": 0.3}, {"need_weights": False}),
    "dropout and weights": ({"dropout": 0.3}, {}),
    "a mask": ({}, {"attn_mask": MASK}),
    "a mask for each head": ({}, {"attn_mask": MASK.double().expand(8, 3, 3) * -2}),
    "padding": ({"batch_first": True}, {"key_padding_mask": MASK.roll(1, 0)[[0, 1, 1, 0]]}),
    "causal": ({"dropout": 0.2}, {"attn_mask": MASK, "is_causal": True, "need_weights": False}),
    "more keys": ({"add_bias_kv": True, "add_zero_attn": True}, {"attn_mask": MASK}),
    "keys of other sizes": ({"kdim": 6, "vdim": 4}, {}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_attention(name: str) -> None:
    options, call = LAYERS[name]
    torch.manual_seed(1)
    layer = torch.nn.MultiheadAttention(8, 2, **options).double()
    batch_first = layer.batch_first
    sizes = (8, layer.kdim, layer.vdim)
    xs = [torch.randn(*((4, 3) if batch_first else (3, 4)), n).double() for n in sizes]
    given = xs if "kdim" in options else xs[:1]
    compiled, found = bt.jit(layer), []
    for each in (compiled, layer):
        torch.manual_seed(2)
        arguments = [x.clone().requires_grad_() for x in given]
        result, weights = each(*(arguments if len(arguments) > 1 else arguments * 3), **call)
        parameters = [*arguments, *layer.parameters()]
        loss = result.square().sum() + (0 if weights is None else weights.pow(3).sum())
        found.append([result, weights, *torch.autograd.grad(loss, parameters)])
    for ours, theirs in zip(*found):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)
    fallbacks = compiled.lower(*(given if len(given) > 1 else given * 3), **call).fallbacks
    expected = {"bernoulli"} if "dropout" in options else set()
    assert {fallback.name for fallback in fallbacks} == expected


def test_a_layer_of_a_transformer_with_dropout_trains() -> None:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16).double()
    x, found = torch.randn(2, 5, 8).double(), []
    for each in (bt.jit(layer), layer):
        torch.manual_seed(2)
        result = each(x)
        found.append((result, *torch.autograd.grad(result.square().sum(), layer.parameters())))
    torch.testing.assert_close(*found)


CONVOLUTIONS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, groups=2),
        [(2, 8, 9, 10), (12, 4, 3, 3), (12,)],
    ),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), [(8, 7, 8), (12, 8, 4, 3)]),
    "valid": (lambda x, w: F.conv1d(x, w, padding="valid"), [(8, 8, 64), (12, 8, 5)]),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        [(2, 8, 12, 13), (8, 6, 3, 3), (6,)],
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_large_convolutions(name: str) -> None:
    fn, shapes = CONVOLUTIONS[name]
    given = drawn(*shapes)
    compiled = bt.jit("cpu")(fn)
    torch.testing.assert_close(gradients(compiled, given), gradients(fn, given))
    torch.testing.assert_close(second(compiled, given), second(fn, given))
    back = compiled.lower(*(x.requires_grad_() for x in given)).backward
    assert {fallback.name for fallback in back.fallbacks} == {"gradient_of_convolution"}


SMALL_CONVOLUTIONS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "passed by": (
        lambda x, w: F.conv1d(x, w, stride=3, dilation=2, padding=1),
        [(2, 3, 15), (4, 3, 3)],
    ),
    "dilation beyond the stride": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, dilation=3, output_padding=2),
        [(2, 3, 7), (3, 4, 2)],
    ),
    "groups of several": (
        lambda x, w: F.conv2d(x, w, groups=2, padding="same"),
        [(4, 5, 6), (6, 2, 2, 3)],
    ),
}


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
def test_small_convolutions(name: str) -> None:
    fn, shapes = SMALL_CONVOLUTIONS[name]
    given = drawn(*shapes)
    compiled = bt.jit("cpu")(fn)
    torch.testing.assert_close(gradients(compiled, given), gradients(fn, given))
    torch.testing.assert_close(second(compiled, given), second(fn, given))
    assert not compiled.lower(*(x.requires_grad_() for x in given)).backward.fallbacks


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float16).requires_grad_()


def test_attention_on_a_gpu_is_torchs() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: float) -> Any:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p)

    compiled = bt.jit(target=bt.Target("cuda", arch="sm_80"))(fn)
    lowered = compiled.lower(*(half(2, 4, 128, 64) for _ in range(3)), 0.0)
    assert [x.name for x in lowered.forward.fallbacks] == ["scaled_dot_product_attention"]
    (fallback,) = lowered.backward.fallbacks
    assert fallback.name == "gradient_of_scaled_dot_product_attention"
    assert not compiled.lower(*(half(2, 4, 16, 8) for _ in range(3)), 0.0).backward.fallbacks
    (fallback,) = compiled.lower(*(half(2, 4, 16, 8) for _ in range(3)), 0.5).backward.fallbacks
    assert fallback.name == "gradient_of_scaled_dot_product_attention"


def test_a_layer_takes_one_product_a_gradient() -> None:
    x, weight, bias = drawn((2, 3, 7, 16), (5, 16), (5,))
    given = [y.requires_grad_() for y in (x, weight, bias)]
    back = bt.jit("cpu")(lambda x, w, b: F.linear(x, w, b)).lower(*given).backward
    assert len(back.schedule().kernels) == 3
