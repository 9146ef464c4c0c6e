"""Kernels that go along rows and reduce the columns of the same rows: values, and reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tvm import ir, tirx

import babytriton as bt
from babytriton.ops.primfunc import nodes
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules, traffic

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

NORMS = (F.layer_norm, F.rms_norm)
SHAPES = ((2, 1024), (7, 33), (40, 1000), (64, 96), (300, 512), (1025, 1024), (4100, 64), (9, 4096))


def of_norm(x, g, w):
    """Along rows, and of columns what the rows' results are needed for, once more than they."""
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return x * r * w, (g * x * r).sum(0), g.sum(0) * 2, g.amax(0)


def sums_of_norm(x, g, w):
    """The same without what is compared."""
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return x * r * w, (g * x * r).sum(0), g.sum(0) * 2


def biased(x, g):
    """Element by element, with the sums of columns."""
    y = g * torch.sigmoid(x)
    return y, y.sum(0)


def totals(x):
    return x.sum(-1), x.sum(0)


def arguments(fn, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    count = fn.__code__.co_argcount
    drawn = [torch.randn(shape).to(dtype) for _ in range(min(count, 2))]
    return [*drawn, torch.randn(shape[-1]).to(dtype)][:count]


@needs_gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fn", [of_norm, biased, totals])
def test_rows_and_their_columns(fn, shape: tuple[int, ...]) -> None:
    args = arguments(fn, shape)
    assert rules(fn, *args) == {"RowsAndColumns"}
    check(fn, *args)


@needs_gpu
@pytest.mark.parametrize("fn", [of_norm, biased])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(fn, dtype: torch.dtype) -> None:
    args = arguments(fn, (65, 264), dtype)
    assert rules(fn, *args) == {"RowsAndColumns"}
    exact = dtype == torch.float64
    check(fn, *args, within=1e-12 if exact else 2e-2 if dtype == torch.bfloat16 else 4e-3)


def of_several_axes(x, w):
    return F.layer_norm(x * 2, x.shape[-1:], w), x.sum((0, 1)), (x * x).sum((0, 1)).sqrt()


@needs_gpu
@pytest.mark.parametrize("shape", [(3, 17, 128), (1, 300, 40), (6, 1, 64)], ids=str)
def test_rows_of_several_axes(shape: tuple[int, ...]) -> None:
    args = [torch.randn(shape), torch.randn(shape[-1])]
    assert rules(of_several_axes, *args) == {"RowsAndColumns"}
    check(of_several_axes, *args)


@needs_gpu
@pytest.mark.parametrize("fn", [of_norm, biased])
@pytest.mark.parametrize("length", [33, 1024])
def test_a_call_tells_how_many_rows_there_are(fn, length: int) -> None:
    rows = bt.Tensor[("n", length), "float32"]
    given = [rows, rows, bt.Tensor[(length,), "float32"]][: fn.__code__.co_argcount]
    program = bt.jit(target=gpu.TARGET)(fn).lower(*given).compile()
    assert len(program.launches) == 2
    for count in (2, 5, 64, 513, 1000):
        check(fn, *arguments(fn, (count, length)), program=program)


@needs_gpu
def test_each_row_is_read_once() -> None:
    x, g, w = arguments(of_norm, (1024, 1024))
    reads, _ = traffic(of_norm, x, g, w)
    assert reads["x"] == reads["g"] == x.numel()


@needs_gpu
def test_what_a_thread_cannot_keep_is_done_apart() -> None:
    args = arguments(of_norm, (16, 20000))
    assert "RowsAndColumns" not in rules(of_norm, *args)
    check(of_norm, *args)


@needs_gpu
def test_no_kernel_goes_along_rows_for_columns_alone() -> None:
    def sums(x):
        return x.sum(0), x.exp().sum(0)

    assert rules(sums, torch.randn(300, 512)) == {"Columns"}


def of_other_rows(x):
    """Of columns, what belongs to other rows."""
    s = x.sum(-1)
    return s, (x * s).sum(0), torch.softmax(x, -1)


def of_elements_of_several_axes(x, w):
    return F.layer_norm(x, x.shape[-2:], w), x.sum(0), (x * w).sum(0)


@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize("shape", [(300, 12, 16), (50, 7, 9), (40, 2, 1000)], ids=str)
def test_elements_of_several_axes(target: str, shape: tuple[int, ...]) -> None:
    args = torch.randn(shape), torch.randn(shape[1:])
    fn = of_elements_of_several_axes
    if target == "gpu":
        assert rules(fn, *args) == {"RowsAndColumns"}
        check(fn, *args)
        return
    on_cpu(fn, *args)
    for ours, theirs in zip(bt.jit("cpu")(fn)(*args), fn(*(x.double() for x in args)), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)


def many(x):
    y = [x * n for n in range(1, 14)]
    return (x * 2, *(torch.sin(z).sum(0) for z in y))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_many_sums_fit_in_the_memory_of_a_thread_block(dtype: torch.dtype) -> None:
    x = torch.randn(4000, 256, dtype=dtype)
    program = compiled(many, x)
    assert all(launch.shared <= 48 * 1024 for launch in program.launches)
    program.source("sass")  # ptxas takes it
    small = torch.randn(70, 256, dtype=dtype)
    check(many, small, within=1e-5 if dtype == torch.float32 else 1e-12)


@needs_gpu
def test_elements_by_themselves_are_in_strips() -> None:
    """Without reductions along rows, these may be of any length."""
    args = arguments(biased, (16, 50_000))
    assert rules(biased, *args) == {"RowsAndColumns"}
    check(biased, *args)


@needs_gpu
@pytest.mark.parametrize("fn", NORMS, ids=lambda fn: fn.__name__)
def test_as_many_rows_as_elements(fn) -> None:
    """What weights are converted to has as many points as there are rows, but is of no row."""

    def norm(x, w):
        return fn(x, x.shape[-1:], w)

    x, w = (
        torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((256, 256), 256)
    )
    program = compiled(norm, x, w)
    assert len(program.launches) == 1
    assert [launch.function for launch in program.backward.launches] == ["norm_backward_kernel"] * 2


@needs_gpu
def test_squares() -> None:
    """Where rows are as many as columns, the axes still differ."""
    x = torch.randn(64, 64)
    assert rules(of_other_rows, x) == {"Rowwise", "Columns"}
    check(of_other_rows, x)
    assert rules(totals, x) == {"RowsAndColumns"}
    check(totals, x)


def turned(x):
    return x.T.contiguous(), x.sum(0), (x.T + 1).sum(-1)


@needs_gpu
def test_transposes_are_other_rows() -> None:
    check(turned, torch.randn(64, 64))
    check(turned, torch.randn(40, 72))


@needs_gpu
@pytest.mark.parametrize("fn", NORMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("shape", [(300, 1024), (4, 33, 128)], ids=str)
def test_the_way_back_of_a_norm_is_one_kernel(fn, shape: tuple[int, ...]) -> None:
    def norm(x, w):
        return fn(x, x.shape[-1:], w)

    x = torch.randn(shape, requires_grad=True)
    w = torch.randn(shape[-1], requires_grad=True)
    program = compiled(norm, x, w)
    assert [launch.function for launch in program.backward.launches] == ["norm_backward_kernel"] * 2
    grad = torch.randn(shape)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    norm(*wide).backward(grad.double())
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.gradients(program, (x, w), {0: grad})
        for ours, theirs in zip(found, wide, strict=True):
            torch.testing.assert_close(ours.double(), theirs.grad, rtol=1e-5, atol=1e-4)


def on_cpu(fn, *args) -> tirx.PrimFunc:
    """The only kernel of a function for the CPU."""
    mod = bt.jit("cpu")(fn).lower(*args).schedule().mod
    (func,) = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert func.attrs["babytriton.rule"] == "RowsAndColumns"
    return func


def loops_over(func: tirx.PrimFunc, name: str) -> int:
    """How many loops that threads share read a tensor."""
    loops = [loop for loop in nodes(func.body, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
    read = [{load.source.name for load in nodes(loop, ir.TensorLoad)} for loop in loops]
    return sum(name in names for names in read)


ON_CPU = ((40, 1000), (4096, 64), (1001, 333), (2500, 1024), (17, 4096), (8192, 128))
FEW = ((64, 96), (130, 129), (255, 128), (3, 33), (2, 1000))
"""For a single thread."""


@pytest.mark.parametrize("shape", ON_CPU + FEW, ids=str)
@pytest.mark.parametrize("fn", [sums_of_norm, biased, totals])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_and_their_columns_on_the_cpu(fn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    args = arguments(fn, shape, dtype)
    assert loops_over(on_cpu(fn, *args), "x") == (shape in ON_CPU)
    exact = fn(*(x.double() for x in args))
    within = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip(bt.jit("cpu")(fn)(*args), exact, strict=True):
        bound = within * max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=bound)


@pytest.mark.parametrize("shape", [(8, 130, 128), (3, 700, 40), (64, 1, 1000)], ids=str)
def test_rows_of_several_axes_on_the_cpu(shape: tuple[int, ...]) -> None:
    args = [torch.randn(shape), torch.randn(shape[-1])]
    assert loops_over(on_cpu(of_several_axes, *args), "x") == 1
    exact = of_several_axes(*(x.double() for x in args))
    for ours, theirs in zip(bt.jit("cpu")(of_several_axes)(*args), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)


def test_a_call_tells_how_many_rows_there_are_on_the_cpu() -> None:
    rows, row = bt.Tensor[("n", 96), "float32"], bt.Tensor[(96,), "float32"]
    program = bt.jit("cpu")(sums_of_norm).lower(rows, rows, row).compile()
    assert len(program.kernels) == 1
    for count in (2, 5, 64, 513, 1000):
        args = arguments(sums_of_norm, (count, 96))
        exact = sums_of_norm(*(x.double() for x in args))
        for ours, theirs in zip(program(*args), exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)


def test_long_sums_of_columns_are_as_precise_as_by_themselves() -> None:
    """In float64, of which a few rows are summed up in float32 first."""
    x, g = torch.rand(200_000, 40) + 1000, torch.ones(200_000, 40)
    _, found = bt.jit("cpu")(biased)(x, g)
    on_cpu(biased, x, g)
    torch.testing.assert_close(found, torch.full((40,), 200_000.0), rtol=1e-7, atol=0)


@pytest.mark.parametrize("fn", NORMS, ids=lambda fn: fn.__name__)
def test_the_way_back_of_a_norm_on_the_cpu(fn) -> None:
    def norm(x, w):
        return fn(x, x.shape[-1:], w)

    x = torch.randn(300, 1024, requires_grad=True)
    w = torch.randn(1024, requires_grad=True)
    program = bt.jit("cpu")(norm).lower(x, w).compile()
    (func,) = [
        func
        for func in program.backward.scheduled.mod.functions.values()
        if isinstance(func, tirx.PrimFunc)
    ]
    assert func.attrs["babytriton.rule"] == "RowsAndColumns"
    assert loops_over(func, "x") == loops_over(func, "grad") == 1
    grad = torch.randn(300, 1024)
    found = torch.autograd.grad(bt.jit("cpu")(norm)(x, w), (x, w), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    norm(*wide).backward(grad.double())
    for ours, theirs in zip(found, wide, strict=True):
        torch.testing.assert_close(ours.double(), theirs.grad, rtol=1e-5, atol=1e-4)


def extremes(x):
    return x.softmax(-1), x.amax(0)


def test_what_is_compared_is_done_apart_on_the_cpu() -> None:
    x = torch.randn(300, 200)
    program = bt.jit("cpu")(extremes).lower(x).compile()
    assert len(program.kernels) == 2
    for ours, theirs in zip(program(x), extremes(x.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)
