"""Matrix products on tensor cores: values, what is fused, and the machine code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.kernels import rules_of

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

FUSED, TF32 = (replace(gpu.TARGET, products=name) for name in ("fused", "tf32"))
SIZES = [(64, 64, 64), (128, 96, 256), (65, 33, 17), (100, 1003, 72), (7, 40, 300), (130, 8, 66)]
HALVES = (torch.float16, torch.bfloat16)
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    torch.manual_seed(0)


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return (torch.randn(shape) / 2).to(dtype)


def check(fn: Function, *args: torch.Tensor, target: bt.Target = FUSED) -> bt.Compiled:
    """Compile, see that the rule took the product, and compare with float64."""
    scheduled = bt.jit(target)(fn).lower(*args).schedule()
    assert "TensorCores" in rules_of(scheduled.mod)
    compiled = scheduled.compile()
    assert not compiled.fallbacks
    ours, exact = gpu.call(compiled, args), fn(*(x.double() for x in args))
    for found, expected in zip(_all(ours), _all(exact)):
        # A rounding of the result; of tf32's operands, of every number in a sum.
        epsilon = torch.finfo(args[0].dtype).eps if target is FUSED else 2.0**-10
        torch.testing.assert_close(
            found.double(), expected, rtol=2 * epsilon, atol=2 * epsilon * expected.abs().max()
        )
    return compiled


def _all(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def product(x, w):
    return x @ w


def of_columns(x, w):
    return torch.einsum("km,kn->mn", x, w)


def of_lines(x, w):
    return torch.einsum("mk,nk->mn", x, w)


def of_both(x, w):
    return torch.einsum("km,nk->mn", x, w)


LAYOUTS = {product: (1, 1), of_columns: (-1, 1), of_lines: (1, -1), of_both: (-1, -1)}


def operands(
    size: tuple[int, int, int], fn: Function, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, depth, columns = size
    left, right = LAYOUTS[fn]
    return numbers(*(rows, depth)[::left], dtype=dtype), numbers(
        *(depth, columns)[::right], dtype=dtype
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("fn", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_and_layouts(size: tuple[int, int, int], fn: Function, dtype: torch.dtype) -> None:
    compiled = check(fn, *operands(size, fn, dtype))
    assert len(compiled.kernels) == 1


@pytest.mark.parametrize("fn", LAYOUTS)
@pytest.mark.parametrize("size", [(64, 64, 64), (65, 33, 17), (100, 52, 72)], ids=str)
def test_float32_is_rounded_to_tf32(size: tuple[int, int, int], fn: Function) -> None:
    x, w = operands(size, fn, torch.float32)
    check(fn, x, w, target=TF32)
    # Only where that is asked for.
    assert "TensorCores" not in rules_of(bt.jit(FUSED)(fn).lower(x, w).schedule().mod)


def test_tf32_rounds_half_away_from_zero() -> None:
    x = torch.tensor([1 + 2.0**-11, 1 + 2.0**-12, -1 - 3 * 2.0**-11, 0]).repeat(64, 16)
    ours = gpu.call(bt.jit(TF32)(product).lower(x, torch.eye(64)).compile(), (x, torch.eye(64)))
    expected = torch.tensor([1 + 2.0**-10, 1, -1 - 2.0**-9, 0]).repeat(64, 16)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_large_products_have_large_tiles() -> None:
    def large(x, w):
        return x @ w

    x, w = numbers(128 * 12 - 1, 40), numbers(40, 128 * 9)
    compiled = check(large, x, w)
    (launch,) = compiled.launches
    assert launch.grid == (9 * 12,)
    assert launch.block == (256,)


@pytest.mark.parametrize("order", emulator.ORDERS)
def test_orders_of_threads(order: emulator.Order) -> None:
    with emulator.thread_order(order):
        check(product, numbers(100, 130), numbers(130, 90))


def test_batches() -> None:
    check(lambda x, w: torch.bmm(x, w), numbers(5, 33, 40), numbers(5, 40, 65))
    check(product, numbers(3, 4, 33, 40), numbers(40, 65))
    check(product, numbers(3, 4, 33, 40), numbers(4, 40, 65))
    check(
        lambda x, w: torch.einsum("bhld,bmhd->bhlm", x, w),
        numbers(2, 3, 20, 40),
        numbers(2, 50, 3, 40),
    )
    check(lambda x, w: torch.einsum("abk,ckd->abcd", x, w), numbers(5, 9, 40), numbers(6, 40, 30))


def test_sums_over_several_axes() -> None:
    check(
        lambda x, w: torch.einsum("bhld,hde->ble", x, w), numbers(2, 3, 20, 16), numbers(3, 16, 40)
    )
    check(lambda x, w: torch.einsum("bld,ble->de", x, w), numbers(3, 20, 40), numbers(3, 20, 33))
    check(lambda x, w: torch.einsum("mk,knq->mqn", x, w), numbers(30, 40), numbers(40, 5, 16))
    check(lambda x, w: torch.einsum("kpm,kn->mpn", x, w), numbers(40, 5, 24), numbers(40, 30))


def test_more_blocks_than_cuda_has_along_y_and_z() -> None:
    for x, w in (
        (numbers(70001, 5, 2), numbers(70001, 2, 5)),
        (numbers(65536 * 64 + 1, 2), numbers(2, 5)),
    ):
        compiled = bt.jit(FUSED)(product).lower(x, w).compile()
        (launch,) = compiled.launches
        assert launch.grid > (65535,)
        assert len(launch.grid) == 1


def test_each_of_several_products_is_one_of_its_own() -> None:
    def mlp(x, w, v):
        return torch.relu(x @ w) @ v

    def gated(x, w, v):
        return F.silu(F.linear(x, w)) * F.linear(x, v)

    args = numbers(64, 64), numbers(64, 64), numbers(64, 64)
    for fn in (mlp, gated):
        scheduled = bt.jit(FUSED)(fn).lower(*args).schedule()
        assert rules_of(scheduled.mod) == ["TensorCores"] * 2
        exact = fn(*(x.double() for x in args))
        ours = gpu.call(scheduled.compile(), args).double()
        torch.testing.assert_close(ours, exact, rtol=1e-2, atol=1e-2 * exact.abs().max())


def test_values_of_a_row_or_a_column_are_computed_on_the_way() -> None:
    def scaled(x, w, b, s):
        return (x @ w) * torch.sigmoid(b) + torch.exp(b[:, None]) * s.exp()

    compiled = check(scaled, numbers(40, 24), numbers(24, 40), numbers(40), numbers())
    assert len(compiled.kernels) == 1


def test_what_follows_is_fused() -> None:
    def layer(x, w, b, r):
        return F.gelu(F.linear(x, w, b)) + r

    x, w = numbers(100, 96), numbers(72, 96)
    compiled = check(layer, x, w, numbers(72), numbers(100, 72))
    assert compiled.kernels == ("layer_kernel",)
    check(layer, numbers(2, 50, 96), w, numbers(72), numbers(2, 50, 72))

    def gated(x, w, scale):
        y = x @ w
        return y, torch.relu(y).float() * scale, y.sum()

    check(gated, x, numbers(96, 71), torch.rand(100, 1))

    def turned(x, w):
        return (x @ w).t().contiguous()

    check(turned, x, numbers(96, 70))


@pytest.mark.parametrize(("rows", "depth"), itertools.product((1, 4), (64, 4096)))
def test_few_rows_are_read_as_they_are(rows: int, depth: int) -> None:
    scheduled = bt.jit(FUSED)(product).lower(numbers(rows, depth), numbers(depth, 64)).schedule()
    assert "TensorCores" not in rules_of(scheduled.mod)


def test_torch_has_what_is_not_asked_for() -> None:
    x, w = numbers(256, 256), numbers(256, 256)
    (fallback,) = bt.jit(bt.Target("cuda", "sm_80"))(product).lower(x, w).compile().fallbacks
    assert "tensor cores" in str(fallback)
    older = bt.Target("cuda", "sm_75", products="fused")
    assert len(bt.jit(older)(product).lower(x, w).compile().fallbacks) == 1
    assert len(bt.jit(FUSED)(product).lower(x.float(), w.float()).compile().fallbacks) == 1
    some = bt.jit(FUSED, dynamic=True)(product).lower(x, w)
    assert len(some.compile().fallbacks) == 1

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    q = numbers(2, 4, 128, 64)
    assert len(bt.jit(FUSED)(attention).lower(q, q, q).compile().fallbacks) == 1


def test_targets() -> None:
    assert str(FUSED) == f"cuda ({gpu.ARCH}, fused products)"
    assert bt.Target("cuda", "sm_80").products == "torch"
    with pytest.raises(ValueError, match="products='ours': expected one of 'torch', 'fused'"):
        bt.Target("cuda", products="ours")
    with pytest.raises(ValueError, match="products='fused': a cpu target has only its own"):
        bt.Target("cpu", products="fused")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("size", [512, 2048])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_machine_code(arch: str, size: int, dtype: torch.dtype) -> None:
    pytest.importorskip("nvidia.cu13", reason="no NVRTC: pip install 'babytriton[cuda]'")

    def layer(x, w, b):
        return torch.relu(x @ w + b)

    args = (
        numbers(size, 256, dtype=dtype),
        numbers(256, size, dtype=dtype),
        numbers(size, dtype=dtype),
    )
    target = bt.Target("cuda", arch, products="tf32")
    compiled = bt.jit(target)(layer).lower(*args).compile()
    (launch,) = compiled.launches
    assert launch.registers <= 168
    assert launch.spilled == 0
    machine = compiled.source("sass")
    assert machine.count("HMMA") >= 16
    assert "LDSM" in machine
    assert "LDG.E.128" in machine
    assert "STS.128" in machine or dtype == torch.float32
