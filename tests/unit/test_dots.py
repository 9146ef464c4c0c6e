"""Products of rows by rows on the CPU, and products of a number of rows that a call tells."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.ops import choice
from babytriton.passes.cpu.dots import tile_size


def linear(x, w):
    return F.linear(x, w)


def gelu_of_linear(x, w, b):
    return F.gelu(F.linear(x, w, b)) * 2


def of_transposed(x, w):
    return torch.relu(x) @ w.transpose(-1, -2)


def product(x, w):
    return x @ w + 1


def numbers(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def check(fn, *args, jitted=None, within=1e-5):
    """Check the result against torch's in float64."""
    exact = fn(*(x.double() for x in args))
    found = (jitted or bt.jit("cpu", dynamic=False)(fn))(*args)
    assert found.dtype == args[0].dtype
    torch.testing.assert_close(found.double(), exact, rtol=within, atol=within * args[0].shape[-1])


def tir(fn, *args):
    return bt.jit("cpu", dynamic=False)(fn).lower(*args).compile().source("tir")


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 17, 40])
@pytest.mark.parametrize("length", [128, 131, 300, 768])
@pytest.mark.parametrize("columns", [64, 100, 103])
def test_values(rows: int, length: int, columns: int) -> None:
    check(linear, numbers(rows, length), numbers(columns, length, seed=1))


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-12), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_dtypes(dtype: torch.dtype, within: float) -> None:
    x, w = numbers(5, 150, dtype=dtype), numbers(70, 150, seed=1, dtype=dtype)
    check(linear, x, w, within=within)


@pytest.mark.parametrize("shape", [(17, 30, 16), (5, 100, 9), (30, 32, 7), (3, 10, 10), (7, 7, 7)])
def test_small_products_are_tiled(shape: tuple[int, int, int]) -> None:
    rows, length, columns = shape
    for fn, other in ((linear, (columns, length)), (product, (length, columns))):
        args = numbers(rows, length), numbers(*other, seed=1)
        check(fn, *args)
        assert "T.alloc_local" in tir(fn, *args)  # the sums are in registers


@pytest.mark.parametrize("rows", [2, 9, 50])
def test_what_follows_is_computed_by_tasks(rows: int) -> None:
    args = numbers(rows, 256), numbers(192, 256, seed=1), numbers(192, seed=2)
    check(gelu_of_linear, *args)
    compiled = bt.jit("cpu", dynamic=False)(gelu_of_linear).lower(*args).compile()
    assert len(compiled.kernels) == 1


def test_batches_and_values_before() -> None:
    check(of_transposed, numbers(3, 2, 11, 160), numbers(3, 2, 13, 160, seed=1))
    check(of_transposed, numbers(3, 11, 160), numbers(13, 160, seed=1))


def transposed_both(x, w):
    return torch.relu(x).t() @ w.mT


def scores(q, k):
    return q.transpose(1, 2) @ k.transpose(1, 2).transpose(-1, -2)


def added(x, w, b):
    return torch.addmm(b, x, w.t())


@pytest.mark.parametrize("dynamic", [False, True])
def test_transposed_operands_are_read_where_they_lie(dynamic: bool) -> None:
    cases = [
        (of_transposed, (numbers(5, 160), numbers(70, 160, seed=1))),
        (of_transposed, (numbers(2, 5, 16), numbers(3, 1, 9, 16, seed=1))),
        (transposed_both, (numbers(160, 33), numbers(70, 160, seed=1))),
        (added, (numbers(5, 160), numbers(70, 160, seed=1), numbers(70, seed=2))),
    ]
    for fn, args in cases:
        jitted = bt.jit("cpu", dynamic=dynamic)(fn)
        check(fn, *args, jitted=jitted)
        assert "T_transpose" not in jitted.source("tir")
    check(scores, numbers(2, 9, 3, 16), numbers(2, 11, 3, 16, seed=1))
    check(lambda x: x @ x.t(), numbers(40, 50))
    check(lambda x, w: x @ w.t(), numbers(50), numbers(40, 50, seed=1))


def test_a_transposed_tensor_that_is_written_to_later() -> None:
    def fn(x, w):
        turned = w.t()
        first = x @ turned
        w.mul_(2)
        return first, x @ turned

    x, w = numbers(5, 16), numbers(7, 16, seed=1)
    expected = fn(x, w.clone())
    for ours, theirs in zip(bt.jit("cpu")(fn)(x, w.clone()), expected):
        torch.testing.assert_close(ours, theirs)


def test_gradients_of_transposed_operands() -> None:
    x, w = (numbers(*s, seed=s[0]).requires_grad_() for s in ((5, 160), (70, 160)))
    bt.jit("cpu")(of_transposed)(x, w).square().sum().backward()
    found, x.grad, given = x.grad, None, w.grad
    w.grad = None
    of_transposed(x, w).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(given, w.grad, rtol=1e-4, atol=1e-3)


def test_torchs_products_read_transposed_operands_where_they_lie() -> None:
    def attended(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v) + 1

    x = torch.empty(4, 128, 8, 64, dtype=torch.float16, device="meta")
    target = bt.Target("cuda", arch="sm_80")
    program = bt.jit(target=target)(attended).lower(x, x, x).compile()
    assert [fallback.name for fallback in program.fallbacks] == ["scaled_dot_product_attention"]
    assert len(program.kernels) == 1  # what adds 1
    x, w = numbers(300, 512, dtype=torch.bfloat16), numbers(400, 512, seed=1, dtype=torch.bfloat16)
    program = bt.jit("cpu", dynamic=False)(of_transposed).lower(x, w).compile()
    check(of_transposed, x, w, within=2e-2)
    if choice.multiplies_bfloat16():
        assert len(program.kernels) == 1  # the relu


def test_few_rows_copy_no_operand() -> None:
    x, w = numbers(17, 512), numbers(256, 512, seed=1)
    source = tir(linear, x, w)
    assert "w_global" not in source
    assert "_lanes" in source
    # Of many rows a copy is the faster.
    source = tir(linear, numbers(400, 512), w)
    assert "w_global" in source
    assert "_lanes" not in source


@pytest.mark.parametrize(("room", "tile"), [(32, (6, 4)), (16, (4, 3)), (8, (2, 2))])
def test_tiles_fit_in_registers(room: int, tile: tuple[int, int]) -> None:
    rows, columns = tile_size(None, 64, room)
    assert (rows, columns) == tile
    assert rows * columns + columns + 1 <= room


@pytest.mark.parametrize("columns", [103, 211, 769])
def test_tiles_of_any_width(columns: int) -> None:
    assert tile_size(33, columns, 32) == tile_size(33, 768, 32)
    check(linear, numbers(33, 256), numbers(columns, 256, seed=1))


def test_no_row_is_copied_to_fill_up_tiles() -> None:
    """The last one is read again, whose numbers must not get into other results."""
    for fn, w in ((linear, numbers(103, 150, seed=1)), (product, numbers(150, 103, seed=1))):
        x = numbers(127, 150)
        assert "x_pad" not in tir(fn, x, w)
        x[-1, 3], x[-1, 4] = float("nan"), float("inf")
        found = bt.jit("cpu", dynamic=False)(fn)(x, w)
        assert found[-1].isnan().all()
        exact = fn(x[:-1].double(), w.double())
        torch.testing.assert_close(found[:-1].double(), exact, rtol=1e-5, atol=1e-4)


LAYERS = [(linear, (96, 160)), (product, (160, 96)), (linear, (100, 64)), (product, (64, 33))]


class TestRowsThatACallTells:
    """One program for any number of rows."""

    @pytest.mark.parametrize(("fn", "shape"), LAYERS, ids=lambda x: getattr(x, "__name__", str(x)))
    def test_values(self, fn, shape) -> None:
        length = shape[1] if fn is linear else shape[0]
        w = numbers(*shape, seed=1)
        compiled = bt.jit("cpu")(fn).lower(bt.Tensor["rows", length], w).compile()
        assert not compiled.fallbacks
        source = compiled.source("tir")
        assert any(mark in source for mark in ("_lanes", "w_global", "w_pad_global"))
        for rows in (2, 5, 8, 16, 17, 64, 131):
            check(fn, numbers(rows, length, seed=rows), w, jitted=compiled)

    def test_what_follows_is_in_the_kernel(self) -> None:
        w, b = numbers(192, 256, seed=1), numbers(192, seed=2)
        lowered = bt.jit("cpu")(gelu_of_linear).lower(bt.Tensor["rows", 256], w, b)
        compiled = lowered.compile()
        assert len(compiled.kernels) == 1
        for rows in (3, 29):
            check(gelu_of_linear, numbers(rows, 256), w, b, jitted=compiled)

    def test_batches(self) -> None:
        w = numbers(40, 130, seed=1)
        compiled = bt.jit("cpu")(linear).lower(bt.Tensor["batch", "rows", 130], w).compile()
        assert not compiled.fallbacks
        for batch, rows in ((2, 3), (5, 17)):
            check(linear, numbers(batch, rows, 130), w, jitted=compiled)

    def test_it_may_tell_all_sizes(self) -> None:
        compiled = bt.jit("cpu")(product).lower(bt.Tensor["m", "k"], bt.Tensor["k", "n"]).compile()
        assert "w_pad_global" in compiled.source("tir")
        for m, k, n in ((2, 3, 4), (17, 130, 33), (64, 64, 64), (100, 7, 200)):
            check(product, numbers(m, k), numbers(k, n, seed=1), jitted=compiled)
        with pytest.raises(ValueError, match="`k`"):
            compiled(numbers(3, 4), numbers(5, 6))

    def test_it_may_tell_how_many_columns_or_batches(self) -> None:
        given = bt.Tensor["b", 20, 30], bt.Tensor["b", "n", 30]
        compiled = bt.jit("cpu")(of_transposed).lower(*given).compile()
        for b, n in ((2, 3), (3, 40), (7, 65)):
            check(of_transposed, numbers(b, 20, 30), numbers(b, n, 30, seed=1), jitted=compiled)


@pytest.mark.parametrize("has_instructions", [False, True])
def test_bfloat16_is_the_processors_where_it_can(has_instructions, monkeypatch) -> None:
    monkeypatch.setattr(choice, "multiplies_bfloat16", lambda: has_instructions)
    x, w = numbers(40, 64, dtype=torch.bfloat16), numbers(64, 50, seed=1, dtype=torch.bfloat16)
    compiled = bt.jit("cpu")(product).lower(x, w).compile()
    assert [f.name for f in compiled.fallbacks] == ["matmul"] * has_instructions
    check(product, x, w, jitted=compiled, within=2e-2)
    # Few rows are as much work as reading the other operand.
    assert not bt.jit("cpu")(product).lower(x[:3].contiguous(), w).compile().fallbacks


def by_itself(x):
    y = torch.relu(x)
    return y @ y.transpose(-1, -2), (y * 2).transpose(-1, -2) @ x


@pytest.mark.parametrize("shape", [(20, 130), (64, 64), (3, 40, 33)])
def test_a_tensor_by_itself_transposed(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    for dynamic in (False, True):
        for found, exact in zip(
            bt.jit("cpu", dynamic=dynamic)(by_itself)(x), by_itself(x.double())
        ):
            torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-3)
