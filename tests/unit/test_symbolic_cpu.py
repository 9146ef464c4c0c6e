"""CPU kernels of sizes that vary from call to call: as few and as fast as those of known ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.stages import Compiled


def varied(fn: Callable[..., Any], *calls: tuple[torch.Tensor, ...]) -> Compiled:
    """The program that serves all of the calls, once each has been compared with torch."""
    function = bt.jit("cpu")(fn)
    for call in calls:
        torch.testing.assert_close(function(*call), fn(*call), rtol=2e-5, atol=2e-5)
    *_, serves_all = calls
    return function.compiled_for(serves_all)


def gated(x, w):
    return F.gelu(x * w + 1) * torch.sigmoid(x)


def gated_by_other(x, y):
    return F.silu(x) * F.gelu(y)


def huber(x, y):
    return F.huber_loss(x, y, reduction="none") * torch.exp(x)


@pytest.mark.parametrize("fn", [gated, gated_by_other, huber])
def test_functions_of_functions_are_one_loop(fn):
    w = torch.randn(40)
    calls = [
        (x, w if fn is gated else torch.randn_like(x)) for x in (torch.randn(n, 40) for n in (7, 9))
    ]
    assert "alloc_buffer" not in varied(fn, *calls).source("tir")


def test_what_is_read_by_more_numbers_is_computed_once():
    """exp of a row is not computed again for each of the rows that it is added to."""

    def added(x, row):
        return x + torch.exp(row)

    row = torch.randn(50)
    compiled = varied(added, *((torch.randn(n, 50), row) for n in (6, 11)))
    assert "alloc_buffer" in compiled.source("tir")


def product(x, w):
    return x @ w


def linear(x, w):
    return F.linear(x, w)


def attended(x, w):
    return torch.softmax(x @ w, -1) @ w.mT


@pytest.mark.parametrize("fn", [product, linear, attended])
def test_products_of_batches_load_vectors(fn):
    w = torch.randn(256, 256) / 16
    calls = [(torch.randn(n, 128, 256) / 4, w) for n in (3, 4)]
    parallel = varied(fn, *calls).source("llvm").partition("__tvm_parallel_lambda")[2]
    # A number that all of a vector is multiplied by is inserted first; others would be beside it.
    assert not re.search(r"insertelement <\d+ x float> .*, i64 [1-9]", parallel)


def mish(x):
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


def test_functions_of_functions_go_by_chunks():
    compiled = varied(mish, *((torch.randn(n),) for n in (700, 1600, 100, 511, 512, 513, 1024, 2)))
    assert "exp_chunk" in compiled.source("tir")


def grouped(x, scale):
    return (x.unflatten(-1, (-1, 8)) * scale[..., None]).flatten(-2)


def by_heads(x, c):
    batch, tokens, width = x.shape
    heads = x.view(batch, tokens, 4, width // 4).transpose(1, 2)
    return (heads * c).transpose(1, 2).reshape(batch, tokens, width)


def differences(x, y):
    return (x.unflatten(3, (-1, 8)) - y).flatten(3, 4)


def rows(x):
    return x.reshape(-1, x.shape[-1]) * 2


SHAPED = [
    (grouped, [((n, 5, 24), (n, 5, 3)) for n in (2, 7)]),
    (grouped, [((n, m, 16), (n, m, 2)) for n, m in ((2, 3), (7, 4))]),
    (by_heads, [((n, t, 8 * t), (t, 2 * t)) for n, t in ((2, 4), (3, 6))]),
    (differences, [((2, n, m, 16), (2, n, m, 2, 8)) for n, m in ((3, 4), (12, 2))]),
    (rows, [((n, m, k),) for n, m, k in ((2, 3, 4), (5, 6, 7))]),
]


@pytest.mark.parametrize(("fn", "calls"), SHAPED)
def test_reshapes_are_no_kernels(fn, calls):
    compiled = varied(fn, *(tuple(map(torch.randn, shapes)) for shapes in calls))
    assert len(compiled.kernels) == 1
    source = compiled.source("tir")
    assert "alloc_buffer" not in source


def total(x, y):
    return (x * y).sum()


def doubled(x):
    return x.flatten(1) * 2


@pytest.mark.parametrize("fn", [total, doubled])
def test_other_shapes_are_read_in_one_piece(fn):
    count = 2 if fn is total else 1
    calls = [tuple(torch.randn(shape) for _ in range(count)) for shape in ((2, 3, 5), (7, 11, 13))]
    source = varied(fn, *calls).source("tir")
    stores = [line for line in source.splitlines() if re.search(r"\] = .*\bx\[", line)]
    assert stores
    for line in stores:
        (inside,) = set(re.findall(r"\bx\[(.*?)\]", line))
        *_, last = inside.split(", ")
        # What is left behind whole lines starts where these end.
        rest = re.sub(r"^x_\S+ // T\.int64\(16\) \* T\.int64\(16\) \+ ", "", last)
        assert "x_" not in rest.partition("ax")[0]
        assert re.search(r"T\.int64\(0\), ", inside)


def repeated(x):
    return x.repeat(2, 1, 1, 2).repeat(1, 16, 1, 1)


def test_divisions_by_sizes_are_those_of_processors():
    """Rounding down would take more instructions, and long to compile."""
    compiled = varied(repeated, *((torch.randn(n, m, 3, 5),) for n, m in ((2, 3), (4, 2), (1, 6))))
    parallel = compiled.source("llvm").partition("__tvm_parallel_lambda")[2]
    assert "srem" in parallel or "urem" in parallel
    assert "icmp slt i64" not in parallel.partition("srem")[2].partition("\nfor_")[0]


SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)


def sums(x):
    return x.cumsum(-1)


def products_from_the_end(x):
    return x.flip(-1).cumprod(-1).flip(-1)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Some whose sums and products are exact."""
    torch.manual_seed(0)
    values = torch.tensor([-1, 1, 2] if dtype != torch.bool else [0, 1, 1])
    return values[torch.randint(0, 3, shape)].to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fn", [sums, products_from_the_end])
def test_running_sums_of_any_number_of_rows(fn, dtype):
    calls = [(numbers(dtype, n, 37),) for n in (0, *SIZES)]
    assert '"babytriton.rule": "Scan"' in varied(fn, *calls).source("tir")
    calls = [(numbers(dtype, *sizes),) for sizes in zip(SIZES, reversed(SIZES))]
    assert '"babytriton.rule": "Scan"' in varied(fn, *calls, (numbers(dtype, 5, 40),)).source("tir")


@pytest.mark.parametrize("shapes", [((9, 40), (12, 40)), ((9, 40), (9, 33)), ((9, 8), (12, 33))])
def test_running_sums_turn_squares_over(shapes):
    assert "T.Shuffle" in varied(sums, *((torch.randn(shape),) for shape in shapes)).source("tir")


def test_running_sums_take_the_place_of_what_they_are_of():
    """The last group of rows walks along one of them again, which must still be there then."""

    def in_place(x):
        x.cumsum_(-1)
        return x * 2

    function = bt.jit("cpu")(in_place)
    for rows in (9, 4, 17, 2, 8):
        x = torch.randn(rows, 40)
        y = x.clone()
        torch.testing.assert_close(function(x), in_place(y))
        torch.testing.assert_close(x, y)


def transposed(x):
    return x.T.contiguous()


def with_transposed(x, y):
    return x + y.T


def with_both_transposed(x, y):
    return x.T * 2 + y.T


def of_each_matrix(x):
    return x.transpose(1, 2).contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposes_of_any_sizes_turn_squares_over(dtype):
    calls = [(numbers(dtype, n, 100),) for n in (*SIZES[1:], 0, 130)]
    compiled = varied(transposed, *calls)
    assert ("T.Shuffle" in compiled.source("tir")) == (dtype != torch.bool)
    calls = [(numbers(dtype, m, n), numbers(dtype, n, m)) for m in SIZES[1:] for n in SIZES[1:]]
    compiled = varied(with_transposed, *calls)
    assert ("T.Shuffle" in compiled.source("tir")) == (dtype != torch.bool)


def test_transposes_of_several_turn_squares_over():
    pairs = [(torch.randn(m, n), torch.randn(m, n)) for m, n in ((40, 50), (50, 17), (9, 16))]
    assert "T.Shuffle" in varied(with_both_transposed, *pairs).source("tir")
    batches = [(torch.randn(size),) for size in ((2, 40, 30), (3, 17, 16), (4, 16, 15), (5, 3, 70))]
    assert "T.Shuffle" in varied(of_each_matrix, *batches).source("tir")


def test_transposes_of_known_sizes_with_one_whole_side_turn_squares_over():
    for shape in ((1003, 64), (64, 1003)):
        x = torch.randn(shape)
        assert "T.Shuffle" in varied(transposed, (x,)).source("tir")


def test_transposes_are_added_in_place():
    """The last square moves back to where others have been added to already."""

    def in_place(x, y):
        x += y.T
        return x

    function = bt.jit("cpu")(in_place)
    for m, n in ((200, 60), (90, 100), (33, 17), (16, 31), (5, 40)):
        x, y = torch.randn(m, n), torch.randn(n, m)
        expected = x + y.T
        torch.testing.assert_close(function(x, y), expected)
        torch.testing.assert_close(x, expected)


def sampled_where_written(x, flow):
    places = flow.clone()
    places[:, 0] = places[:, 0] * 2.0
    places[:, 1] = places[:, 1] * 3.0
    return F.grid_sample(x, places.permute(0, 2, 3, 1), align_corners=True)


def test_gradients_of_what_is_written_to_slices_of_what_is_turned():
    jitted = bt.jit("cpu", dynamic=True)(sampled_where_written)
    for n, channels, rows, columns in ((2, 3, 5, 6), (3, 4, 7, 17)):
        made = torch.Generator().manual_seed(rows)
        x = torch.randn(n, channels, 6, 9, generator=made, dtype=torch.float64)
        flow = torch.rand(n, 2, rows, columns, generator=made, dtype=torch.float64) / 3
        exact = [each.requires_grad_() for each in (x, flow)]
        given = [each.detach().float().requires_grad_() for each in (x, flow)]
        found = torch.autograd.grad(jitted(*given).square().sum(), given)
        expected = torch.autograd.grad(sampled_where_written(*exact).square().sum(), exact)
        for grad, other in zip(found, expected):
            torch.testing.assert_close(grad.double(), other, rtol=1e-3, atol=1e-3)


def test_padding_asks_nothing_of_dimensions_that_stay():
    def before_one(x):
        return F.pad(x, (0, 0, 1, 0)) * 2

    lowered = bt.jit("cpu", dynamic=True)(before_one).lower(torch.randn(3, 5, 7))
    (line,) = [x for x in lowered.as_text().splitlines() if "if_then_else" in x]
    assert "if_then_else(T.int64(1) <= v_i1, x[v_i0, v_i1 - T.int64(1), v_i2]," in line
    for shape in ((3, 5, 7), (2, 9, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(lowered.compile()(x), before_one(x))
