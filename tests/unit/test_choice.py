"""Products that are left to torch, and which lines the kernels cover."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops import choice
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_fusion import handwritten_softmax

GPU = gpu.TARGET


def convolved(x, w):
    return F.conv2d(x, w, padding=1) * 2


def fallbacks(fn, *args, target=None):
    jitted = bt.jit("cpu")(fn) if target is None else bt.jit(target=target)(fn)
    return [fallback.name for fallback in jitted.lower(*args).fallbacks]


def test_large_convolutions_are_torchs() -> None:
    x, w = torch.randn(1, 16, 20, 20), torch.randn(8, 16, 3, 3)
    jitted = bt.jit("cpu")(convolved)
    torch.testing.assert_close(jitted(x, w), convolved(x, w))
    (fallback,) = jitted.lower(x, w).fallbacks
    assert fallback.reason == "torch's library is faster for a convolution of this size"


def test_small_convolutions_are_ours() -> None:
    args = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    assert fallbacks(convolved, *args) == []
    torch.testing.assert_close(bt.jit("cpu")(convolved)(*args), convolved(*args))


def test_convolutions_of_sizes_that_a_call_tells_are_torchs() -> None:
    weight = torch.randn(3, 2, 3, 3)
    images = bt.Tensor["n", 2, "h", "w"]
    compiled = bt.jit("cpu")(convolved).lower(images, weight).compile()
    assert [f.name for f in compiled.fallbacks] == ["conv2d"]
    assert fallbacks(convolved, images, weight, target=GPU) == ["conv2d"]
    for shape in ((2, 2, 5, 7), (3, 2, 20, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, weight), convolved(x, weight))


@pytest.mark.parametrize("has_instructions", [False, True])
def test_convolutions_are_ours_where_there_is_no_choice(has_instructions, monkeypatch) -> None:
    large = torch.randn(1, 16, 20, 20), torch.randn(8, 16, 3, 3)
    assert fallbacks(convolved, *large, target=GPU) == ["conv2d"]
    assert fallbacks(convolved, *(x.half() for x in large)) == []
    monkeypatch.setattr(choice, "multiplies_bfloat16", lambda: has_instructions)
    expected = ["conv2d"] * has_instructions
    assert fallbacks(convolved, *(x.bfloat16() for x in large)) == expected


@pytest.mark.parametrize("has_library", [False, True])
def test_large_products_are_intels_where_torch_has_its_library(has_library, monkeypatch) -> None:
    monkeypatch.setattr(choice, "has_library_of_intel", lambda: has_library)

    def product(x, w):
        return x @ w

    def by(*shapes, dtype=torch.float32):
        return fallbacks(product, *(torch.empty(n, dtype=dtype, device="meta") for n in shapes))

    large = ["matmul"] * has_library
    assert by((1024, 1024), (1024, 1024)) == large
    assert by((4, 256, 1024), (1024, 1024)) == large
    assert by((128, 3072), (3072, 768)) == large
    assert by((128, 768), (768, 3072)) == large
    assert by((256, 768), (768, 3072)) == []
    assert by((1024, 1024), (1024, 1000)) == []
    assert by((31, 4096), (4096, 4096)) == []
    assert by((32, 512, 512), (32, 512, 512)) == []
    assert by((1024, 1024), (1024, 1024), dtype=torch.float64) == []


def layer(x, w, b):
    return F.gelu(F.linear(x, w, b)) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_large_products_are_torchs_on_a_gpu(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(70, 130), torch.randn(256, 130), torch.randn(256)
    args = tuple(value.to(dtype) for value in (x, w, b))
    compiled = bt.jit(target=GPU)(layer).lower(*args).compile()
    assert [str(f.name) for f in compiled.fallbacks] == ["linear"]
    assert compiled.kernels == ("layer_kernel",)  # what follows the product is one kernel
    if emulator.available_gpu() is None:
        pytest.skip(emulator.missing() or "no GPU")
    # Which of two halves a sum is rounded to depends on the library.
    tolerance = 4 * torch.finfo(dtype).eps
    exact = layer(*(x.double() for x in args))
    within = tolerance * exact.abs().max().item()
    torch.testing.assert_close(
        gpu.call(compiled, args).double(), exact, rtol=tolerance, atol=within
    )


def multiplied(x, w):
    return torch.relu(x @ w)


def turned(x, w):
    return torch.relu(x @ w.t())


def turned_first(x, w):
    return torch.relu(x.t() @ w)


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("fn", "shapes", "kernels"),
    [
        (multiplied, ((130, 67), (67, 144)), 3),  # zeros behind both, and relu
        (multiplied, ((130, 64), (64, 141)), 2),
        (multiplied, ((3, 130, 67), (67, 141)), 3),
        (multiplied, ((130, 64), (64, 144)), 1),
        (turned, ((130, 67), (144, 67)), 3),
        (turned, ((130, 64), (141, 64)), 1),
        (turned_first, ((67, 136), (67, 144)), 1),
        (turned_first, ((67, 136), (67, 141)), 2),
        (layer, ((4, 130, 67), (140, 67), (140,)), 3),
        (layer, ((130, 64), (141, 64), (141,)), 1),
    ],
)
def test_unaligned_halves_are_multiplied_with_zeros_behind_them(
    fn, shapes, kernels, dtype, monkeypatch
) -> None:
    monkeypatch.setattr(choice, "LARGE_IF_UNALIGNED", 1)
    monkeypatch.setattr(choice, "LONG_IF_UNALIGNED", 1)
    args = tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    given = tuple(x.detach() for x in args)
    compiled = bt.jit(target=GPU)(fn).lower(*given).compile()
    assert len(compiled.fallbacks) == 1
    assert len(compiled.kernels) == kernels
    wide = [x.double().requires_grad_() for x in given]
    exact = fn(*wide)
    tolerance = 4 * torch.finfo(dtype).eps
    found = gpu.call(compiled, given).double()
    within = tolerance * exact.abs().max().item()
    torch.testing.assert_close(found, exact.detach(), rtol=tolerance, atol=within)
    grad = torch.randn(exact.shape).to(dtype)
    ours = gpu.gradients(bt.jit(target=GPU)(fn).lower(*args).compile(), args, {0: grad})
    for one, other in zip(ours, torch.autograd.grad(exact, wide, grad.double())):
        within = 4 * tolerance * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=within)


def test_which_halves_get_zeros_behind_them() -> None:
    def kernels(left, right, dtype=torch.float16, target=GPU) -> int:
        args = (torch.empty(shape, dtype=dtype, device="meta") for shape in (left, right))
        return len(bt.jit(target=target)(lambda x, w: x @ w).lower(*args).compile().kernels)

    assert kernels((1024, 1032), (1032, 1024)) == 0
    assert kernels((1024, 1031), (1031, 1024)) == 2
    assert kernels((1024, 1032), (1032, 1023)) == 2  # of one operand, and of the result
    assert kernels((1024, 1003), (1003, 1024)) == 0  # not enough
    assert kernels((256, 4099), (4099, 1024)) == 0  # a copy of so many columns for few rows
    assert kernels((1024, 1031), (1031, 1024), torch.float32) == 0
    x, w = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((2049, 1024),) * 2)
    for fn, count in (  # what lies across is not what is loaded in vectors
        (lambda x, w: x.t() @ w, 0),
        (lambda x, w: x @ w.t(), 0),
        (lambda x, w: x[:, :1023] @ w[:, :1023].t(), 1),  # called for each of the two
    ):
        assert len(bt.jit(target=GPU)(fn).lower(x, w).compile().kernels) == count
    fused = bt.Target("cuda", gpu.ARCH, products="fused")
    assert kernels((1024, 1031), (1031, 1024), target=fused) == 1
    deep = (16, 200001), (200001, 16)
    assert kernels(*deep) == 0
    assert kernels(*deep, torch.bfloat16) == 2
    assert kernels((16, 20001), (20001, 16), torch.bfloat16) == 0  # not enough


def added(x, w, b):
    return torch.addmm(b, x, w.t(), beta=0.5, alpha=-2).relu()


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
@pytest.mark.parametrize("fn", [layer, added])
def test_what_is_added_to_few_long_sums_is_added_by_a_kernel(fn) -> None:
    shapes = (80, 10000), (60, 10000), (60,)
    args = tuple(torch.randn(shape).requires_grad_() for shape in shapes)
    given = tuple(x.detach() for x in args)
    compiled = bt.jit(target=GPU)(fn).lower(*given).compile()
    (product,) = compiled.fallbacks
    assert product.name == {layer: "linear", added: "mm"}[fn]
    assert len(compiled.kernels) == 1
    assert f"// {product.name}: float32[80, 60], b: float32[60]," in compiled.source("cuda")
    few = tuple(x.detach()[:, :8000] if x.ndim == 2 else x.detach() for x in args)
    assert bt.jit(target=GPU)(fn).lower(*few).fallbacks[0].name in ("linear", "addmm")
    wide = [x.double().requires_grad_() for x in given]
    exact = fn(*wide)
    within = {"rtol": 1e-4, "atol": 1e-4 * exact.abs().max().item()}
    torch.testing.assert_close(gpu.call(compiled, given).double(), exact.detach(), **within)
    grad = torch.randn(exact.shape)
    ours = gpu.gradients(bt.jit(target=GPU)(fn).lower(*args).compile(), args, {0: grad})
    for one, other in zip(ours, torch.autograd.grad(exact, wide, grad.double())):
        within = {"rtol": 1e-4, "atol": 1e-4 * other.abs().max().item()}
        torch.testing.assert_close(one.double(), other, **within)


def turned_over(x, w):
    return x.t() @ w


def over_two_axes(x, w):
    return torch.einsum("bti,btj->ij", x, w)


def of_batches(x, w):
    return torch.einsum("bik,jk->bij", x, w) * 2


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
@pytest.mark.parametrize(
    ("fn", "shapes", "kernels"),
    [
        (layer, ((64, 8192), (64, 8192), (64,)), 2),
        (layer, ((7, 10007), (9, 10007), (9,)), 3),  # and a rest
        (added, ((16, 9000), (12, 9000), (12,)), 3),
        (turned_over, ((8200, 16), (8200, 32)), 2),
        (turned_over, ((8209, 16), (8209, 32)), 3),
        (of_batches, ((3, 5, 8192), (6, 8192)), 2),
        (over_two_axes, ((30, 300, 16), (30, 300, 8)), 2),
        (over_two_axes, ((2, 8197, 7), (2, 8197, 6)), 3),
        (over_two_axes, ((8200, 2, 16), (8200, 2, 16)), 2),
    ],
)
def test_few_long_sums_are_in_pieces(fn, shapes, kernels) -> None:
    args = tuple(torch.randn(shape).requires_grad_() for shape in shapes)
    given = tuple(x.detach() for x in args)
    compiled = bt.jit(target=GPU)(fn).lower(*given).compile()
    assert compiled.fallbacks == ()
    assert len(compiled.kernels) == kernels
    assert max(math.prod(launch.grid) for launch in compiled.launches) >= 16
    wide = [x.double().requires_grad_() for x in given]
    exact = fn(*wide)
    within = {"rtol": 1e-4, "atol": 1e-4 * exact.abs().max().item()}
    for order in emulator.ORDERS[:2]:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.call(compiled, given).double()
            torch.testing.assert_close(found, exact.detach(), **within)
    grad = torch.randn(exact.shape)
    ours = gpu.gradients(bt.jit(target=GPU)(fn).lower(*args).compile(), args, {0: grad})
    for one, other in zip(ours, torch.autograd.grad(exact, wide, grad.double())):
        within = {"rtol": 1e-4, "atol": 1e-4 * other.abs().max().item()}
        torch.testing.assert_close(one.double(), other, **within)


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bfloat16], ids=str)
def test_small_products_with_long_sums_are_in_pieces(dtype) -> None:
    x, w = (torch.randint(-3, 4, (n, 8195)).to(dtype) for n in (7, 9))
    compiled = bt.jit(target=GPU)(lambda x, w: x @ w.t()).lower(x, w).compile()
    assert max(math.prod(launch.grid) for launch in compiled.launches) >= 32
    exact = x.double() @ w.double().t()
    found = gpu.call(compiled, (x, w)).double()
    within = 0 if dtype == torch.int32 else torch.finfo(dtype).eps
    torch.testing.assert_close(found, exact, rtol=within, atol=within)


@pytest.mark.skipif(emulator.available_gpu() is None, reason=emulator.missing() or "no GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (layer, ((40, 8192), (64, 8192), (64,))),
        (layer, ((7, 10007), (9, 10007), (9,))),
        (turned_over, ((8192, 24), (8192, 32))),
    ],
)
def test_long_sums_on_tensor_cores_are_in_pieces(fn, shapes, dtype) -> None:
    args = tuple(torch.randn(shape).to(dtype) for shape in shapes)
    target = bt.Target("cuda", gpu.ARCH, products="tf32")
    compiled = bt.jit(target=target)(fn).lower(*args).compile()
    assert compiled.fallbacks == ()
    assert "mma.sync" in compiled.source("cuda")
    assert max(math.prod(launch.grid) for launch in compiled.launches) >= 32
    exact = fn(*(x.double() for x in args))
    within = torch.finfo(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16).eps
    atol = within * exact.abs().max().item()
    found = gpu.call(compiled, args).double()
    torch.testing.assert_close(found, exact, rtol=2 * within, atol=atol)


def of_batches_of_both(x, w):
    return torch.einsum("bik,bjk->bij", x, w)


def test_small_products_of_sizes_that_a_call_tells_are_ours_beside_an_axis_of_one() -> None:
    x, w = bt.Tensor["n", 5, 64], torch.randn(1, 2, 64)
    program = bt.jit(target=GPU)(of_batches_of_both).lower(x, w)
    assert program.fallbacks == ()


def test_products_by_a_single_number_are_ours() -> None:
    x, by = torch.randn(4, 8192), torch.tensor(2.0)
    assert fallbacks(lambda x, by: torch.einsum("ij,->i", x, by), x, by, target=GPU) == []


def test_which_long_sums_are_in_pieces() -> None:
    def product(x, w):
        return x @ w.t()

    def names(fn, left, right, dtype=torch.float32, target=GPU) -> list[str]:
        given = (torch.empty(shape, dtype=dtype, device="meta") for shape in (left, right))
        return fallbacks(fn, *given, target=target)

    assert names(product, (64, 8192), (64, 8192)) == []
    assert names(product, (64, 8000), (64, 8000)) == ["matmul"]  # not long
    assert names(product, (65, 8192), (64, 8192)) == ["matmul"]  # not few
    assert names(product, (64, 8192), (64, 8192), torch.float64) == ["matmul"]
    assert names(product, (64, 8192), (64, 8192), torch.bfloat16) == ["matmul"]
    assert names(turned_over, (8192, 32), (8192, 32)) == []
    assert names(turned_over, (8192, 64), (8192, 32)) == ["matmul"]  # lies across
    assert names(product, (7, 8195), (9, 8195), torch.float16) == []  # too small for torch
    assert names(product, (70, 8195), (9, 8195), torch.int32) == []
    wide, narrow = (16, 8, 8192), (1, 256, 8192)
    assert names(of_batches_of_both, wide, narrow) == ["einsum"]  # not few
    assert names(of_batches_of_both, narrow, wide) == ["einsum"]
    assert names(of_batches_of_both, (2, 8, 8192), (1, 64, 8192)) == []
    x = torch.empty(64, 8192)
    sized = bt.jit(target=GPU, dynamic=True)(product).lower(x, torch.empty(32, 8192))
    assert [fallback.name for fallback in sized.fallbacks] == ["matmul"]


@pytest.mark.parametrize("rows", [1, 4])
def test_products_of_a_few_rows_are_ours(rows: int) -> None:
    assert (
        fallbacks(
            layer, torch.randn(rows, 2048), torch.randn(4096, 2048), torch.randn(4096), target=GPU
        )
        == []
    )


def test_which_products_are_large() -> None:
    def product(x, w):
        return x @ w

    def heads(x, w):
        return torch.einsum("bik,bjk->bij", x, w)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v) * 2

    x = torch.randn(8, 64, 64)
    assert fallbacks(product, x[0], x[1], target=GPU) == []
    assert fallbacks(product, x, x, target=GPU) == ["matmul"]
    assert fallbacks(heads, x, x, target=GPU) == ["einsum"]
    assert fallbacks(attention, *[torch.randn(2, 4, 128, 64)] * 3, target=GPU) == [
        "scaled_dot_product_attention"
    ]
    assert fallbacks(product, x.int(), x.int(), target=GPU) == []  # torch has none on a GPU
    sized = bt.jit(target=GPU, dynamic=True)(product)
    assert [f.name for f in sized.lower(x[0], torch.randn(64, 32)).fallbacks] == ["matmul"]
    assert fallbacks(product, x, x) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_ours(dtype: torch.dtype) -> None:
    def product(x, w):
        return torch.relu(x @ w)

    x, w = torch.randn(256, 300, dtype=dtype), torch.randn(300, 270, dtype=dtype)
    assert fallbacks(product, x, w) == []
    actual, exact = bt.jit("cpu")(product)(x, w), product(x.double(), w.double())
    tolerance = 300**0.5 * 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=16 * tolerance)


def test_kernels_know_their_lines() -> None:
    first = inspect.getsourcelines(handwritten_softmax)[1]
    file = inspect.getsourcefile(handwritten_softmax)
    for target in ("cpu", GPU):
        (kernel,) = (
            bt.jit(target=target)(handwritten_softmax).lower(torch.ones(8, 64)).schedule().kernels
        )
        assert kernel.lines == (f"{file}:{first + 1}", f"{file}:{first + 2}")


def test_lines_of_several_kernels() -> None:
    def f(x):
        y = torch.exp(x) + 1
        z = torch.sort(y).values
        return z * 2

    first = inspect.getsourcelines(f)[1]
    kernels = bt.jit("cpu")(f).lower(torch.ones(5)).compile().kernels
    lines = [[int(line.rpartition(":")[2]) - first for line in kernel.lines] for kernel in kernels]
    assert sorted(lines) == [[1], [3]]
