"""What is computed twice is computed once: blocks of a kernel, and calls of a program."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from tvm.script import tirx as T

import babytriton as bt
from babytriton.passes.blocks import plain_blocks
from babytriton.passes.repeated_blocks import without_repeated_blocks
from tests.conformance import gpu

H100 = bt.Target("cuda", arch="sm_90")


def softmaxes(x):
    return torch.softmax(x, -1), torch.log_softmax(x, -1)


def softmax_and_logsumexp(x):
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


def entropy(x):
    p = torch.softmax(x, -1)
    return -(p * torch.log_softmax(x, -1)).sum(-1)


def smoothed_and_shares(x):
    classes = torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]
    loss = F.cross_entropy(x, classes, label_smoothing=0.1, reduction="none")
    return loss, torch.softmax(x, -1)


def confidence(x):
    penalty = (torch.softmax(x / 2.0, -1) * F.log_softmax(x / 2.0, -1)).sum(-1)
    return F.log_softmax(x / 2.0, -1)[:, 0] - penalty


def distilled(x):
    teacher = F.softmax(x.flip(0) / 2.0, -1)
    return F.kl_div(F.log_softmax(x / 2.0, -1), teacher, reduction="none").sum(-1) * 4.0


ON_ONE_TENSOR = (softmaxes, entropy, smoothed_and_shares, confidence)
EACH = (*ON_ONE_TENSOR, softmax_and_logsumexp, distilled)


def rows_in(source: str, start: str) -> int:
    """How many numbers of a row a kernel finds from this one on."""
    return len(re.findall(rf"^  float \w+_of_row(?:_\d+)? = {start}", source, re.MULTILINE))


def maxima(source: str) -> int:
    return rows_in(source, r"-3\.4028235e\+38f;")


def sums(source: str) -> int:
    return rows_in(source, r"0\.0f;")


@pytest.mark.parametrize(
    ("fn", "count"), [(softmaxes, 1), (entropy, 2), (smoothed_and_shares, 2), (confidence, 2)]
)
def test_one_maximum_and_one_sum_of_exponentials(fn, count: int) -> None:
    x = torch.empty(4096, 1000, device="meta")
    compiled = bt.jit(H100)(fn).lower(x).compile()
    (_,) = compiled.kernels
    source = compiled.source("cuda")
    assert maxima(source) == 1
    assert sums(source) == count  # the other one is of something else


def test_maxima_are_shared_by_sums_that_differ() -> None:
    """In a row with an infinity, the sum of logsumexp is another than that of softmax."""
    x = torch.empty(4096, 1000, device="meta")
    source = bt.jit(H100)(softmax_and_logsumexp).lower(x).compile().source("cuda")
    assert (maxima(source), sums(source)) == (1, 2)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("fn", [softmaxes, entropy])
def test_sizes_of_calls_are_no_hindrance(fn, gradients: bool) -> None:
    x = torch.empty(4096, 1000, device="meta", requires_grad=gradients)
    source = bt.jit(H100, dynamic=True)(fn).lower(x).compile().source("cuda")
    assert maxima(source) == 1


def test_rows_of_different_tensors_are_not_one() -> None:
    def fn(x, y):
        return torch.softmax(x, -1) + torch.softmax(y, -1)

    x = torch.empty(4096, 1000, device="meta")
    source = bt.jit(H100)(fn).lower(x, torch.empty_like(x)).compile().source("cuda")
    assert (maxima(source), sums(source)) == (2, 2)


def special(rows: int, length: int) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(rows, length) * 4
    x[1, 3] = float("inf")
    x[2, 5] = float("nan")
    x[3] = float("-inf")
    x[4, 1:3] = torch.tensor([float("inf"), float("nan")])
    return x


def compare(found, x: torch.Tensor, fn) -> None:
    wanted = fn(x.double())
    torch.testing.assert_close(
        found, wanted, rtol=1e-5, atol=1e-5, check_dtype=False, equal_nan=True
    )


@pytest.mark.parametrize("fn", EACH)
@pytest.mark.parametrize("length", [10, 200])
def test_values_on_the_cpu(fn, length: int) -> None:
    x = special(9, length)
    compare(bt.jit("cpu")(fn)(x), x, fn)


@pytest.mark.parametrize("fn", EACH)
def test_values_on_a_gpu(fn) -> None:
    x = special(9, 200)
    compiled = bt.jit(gpu.TARGET)(fn).lower(x).compile()
    compare(gpu.call(compiled, (x,)), x, fn)


@pytest.mark.parametrize("fn", EACH)
def test_gradients(fn) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 40, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    found, wanted = bt.jit("cpu")(fn)(x), fn(exact)
    found, wanted = [y if isinstance(y, tuple) else (y,) for y in (found, wanted)]
    cotangents = [torch.randn_like(y) for y in found]
    torch.autograd.backward(found, cotangents)
    torch.autograd.backward(wanted, [g.double() for g in cotangents])
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", [softmaxes, entropy, confidence])
def test_two_numbers_of_a_row_are_saved(fn) -> None:
    x = torch.empty(4096, 1000, device="meta", requires_grad=True)
    compiled = bt.jit(H100)(fn).lower(x).compile()
    source = compiled.source("cuda")
    assert (maxima(source), source.count("float32[4096, 1]")) == (1, 2)
    assert maxima(compiled.backward.source("cuda")) == 0


def test_results_that_are_equal_are_two_tensors() -> None:
    def fn(x):
        return x.sum(-1), x.sum(-1), x.sum(-1).reshape(3, 3)

    x = torch.randn(9, 40)
    for found in (bt.jit("cpu")(fn)(x), bt.jit("cpu")(fn)(x.clone().requires_grad_())):
        first, second, third = (y.detach() for y in found)
        first.zero_()
        torch.testing.assert_close(second, x.sum(-1))
        second.zero_()
        torch.testing.assert_close(third, x.sum(-1).reshape(3, 3))


def test_a_product_that_is_written_twice_is_one() -> None:
    def fn(x, w):
        return (x @ w).relu() - (x @ w).sigmoid()

    x, w = torch.randn(40, 30), torch.randn(30, 50)
    compiled = bt.jit("cpu")(fn).lower(x, w).compile()
    torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-4, atol=1e-4)


def test_random_numbers_are_drawn_each_time() -> None:
    def fn(x):
        return F.dropout(x, 0.5) - F.dropout(x, 0.5), torch.rand(4) - torch.rand(4)

    first, second = bt.jit("cpu")(fn)(torch.ones(100))
    assert first.any()
    assert second.all()


def test_what_is_written_between_is_read_again() -> None:
    def fn(x):
        before = torch.softmax(x, -1)
        x[:, 0] += 1.0
        return before, torch.softmax(x, -1)

    x = torch.randn(9, 40)
    wanted, mine = fn(x.double()), x.clone()
    for found in (bt.jit("cpu")(fn)(x), gpu.call(*_lowered(fn, mine))):
        torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-5, atol=1e-6)


def _lowered(fn, *args):
    return bt.jit(gpu.TARGET)(fn).lower(*args).compile(), args


def test_precisions_are_not_mixed() -> None:
    def fn(x):
        return torch.softmax(x, -1) - torch.softmax(x.half(), -1).float(), x.half().sum(-1)

    x = torch.randn(9, 40)
    found, wanted = bt.jit("cpu")(fn)(x), fn(x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert found[0].any()


# The blocks of a kernel


def names(func) -> list[str]:
    return [block.name_hint for block in plain_blocks(without_repeated_blocks(func))]


@T.prim_func(s_tir=True)
def _result(x: T.Buffer((8, 16), "float32"), out: T.Buffer((8,), "float32")):
    total = T.sblock_alloc_buffer((8,))
    twice = T.sblock_alloc_buffer((8,))
    for i, k in T.grid(8, 16):
        with T.sblock("total"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                total[v_i] = T.float32(0)
            total[v_i] = total[v_i] + x[v_i, v_k]
    for i in range(8):
        with T.sblock("twice"):
            v_i = T.axis.spatial(8, i)
            twice[v_i] = T.exp(total[v_i])
    for m, n in T.grid(8, 16):
        with T.sblock("out"):
            v_m, v_n = T.axis.remap("SR", [m, n])
            with T.init():
                out[v_m] = T.float32(0)
            out[v_m] = out[v_m] + x[v_m, v_n]


def test_a_result_is_written_where_its_values_are_first() -> None:
    found = without_repeated_blocks(_result)
    first, second = plain_blocks(found)
    assert [first.name_hint, second.name_hint] == ["total", "twice"]
    assert first.body.buffer.same_as(found.params[1])
    assert second.reads[0].source.same_as(found.params[1])
    assert [x.name for x in found.body.block.alloc_buffers] == ["twice"]


@T.prim_func(s_tir=True)
def _changing(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    a = T.sblock_alloc_buffer((8,))
    b = T.sblock_alloc_buffer((8,))
    for i in range(8):
        with T.sblock("a"):
            v_i = T.axis.spatial(8, i)
            a[v_i] = T.exp(x[v_i])
    for i in range(8):
        with T.sblock("x"):
            v_i = T.axis.spatial(8, i)
            x[v_i] = a[v_i]
    for i in range(8):
        with T.sblock("b"):
            v_i = T.axis.spatial(8, i)
            b[v_i] = T.exp(x[v_i])
    for i in range(8):
        with T.sblock("out"):
            v_i = T.axis.spatial(8, i)
            out[v_i] = T.exp(b[v_i])


@T.prim_func(s_tir=True)
def _adding(x: T.Buffer((8, 16), "float32"), a: T.Buffer((8,), "float32")):
    b = T.sblock_alloc_buffer((8,))
    for i, k in T.grid(8, 16):
        with T.sblock("a"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            a[v_i] = a[v_i] + T.exp(x[v_i, v_k])
    for i, k in T.grid(8, 16):
        with T.sblock("b"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            b[v_i] = b[v_i] + T.exp(x[v_i, v_k])


@T.prim_func(s_tir=True)
def _others(
    x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32"), out: T.Buffer((8,), "float32")
):
    a = T.sblock_alloc_buffer((8,))
    b = T.sblock_alloc_buffer((8,))
    c = T.sblock_alloc_buffer((8,))
    for i, k in T.grid(8, 8):
        with T.sblock("a"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                a[v_i] = T.float32(0)
            a[v_i] = a[v_i] + x[v_i, v_k]
    for i, k in T.grid(8, 8):
        with T.sblock("b"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                b[v_i] = T.float32(0)
            b[v_i] = b[v_i] + y[v_i, v_k]
    for i, k in T.grid(8, 8):
        with T.sblock("c"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                c[v_i] = T.float32(0)
            c[v_i] = c[v_i] + x[v_k, v_i]
    for i, k in T.grid(8, 8):
        with T.sblock("out"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                out[v_i] = T.float32(1)
            out[v_i] = out[v_i] + x[v_i, v_k]


@pytest.mark.parametrize("func", [_changing, _adding, _others])
def test_blocks_stay_that_compute_something_else(func) -> None:
    assert without_repeated_blocks(func) is func
