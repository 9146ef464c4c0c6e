"""Reductions of columns, and of whole tensors, with what comes before and after: one kernel."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit.test_gpu_programs import check, compiled, rules, traffic

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def statistics(x):
    return x.mean(0), x.amax(0), (x * x).sum(0), x.abs().sum(0)


def gradients_of_norm(x, g):
    return (x * g).sum(0), g.sum(0)


def with_another(x, w):
    """The sum of squares needs the mean; the maximum needs nothing and goes with that."""
    m = x.mean(0)
    return ((x - m) ** 2).mean(0) * w, x.amax(0) + m


def batch_norm(x, w):
    m = x.mean(0)
    v = ((x - m) ** 2).mean(0)
    return ((x - m) * torch.rsqrt(v + 1e-5) * w,)


def deviation_in_the_middle(x):
    y = x.view(8, -1, x.shape[-1])
    return (((y - y.mean(1, keepdim=True)) ** 2).sum(1),)


def normalized(x, w):
    return F.normalize(x, dim=0), F.batch_norm(x, None, None, w, w, training=True)


def powers(x):
    return tuple((x + n).abs().sum(0) for n in range(14))


@needs_gpu
@pytest.mark.parametrize("fn", [statistics, gradients_of_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_columns_are_read_once(fn, dtype: torch.dtype) -> None:
    args = [torch.empty(4096, 1024, dtype=dtype, device="meta")] * fn.__code__.co_argcount
    reads, _ = traffic(fn, *args)
    for name in fn.__code__.co_varnames[: len(args)]:
        assert reads[name] == args[0].numel()


def sums(x):
    return (x.sum(0),)


@needs_gpu
@pytest.mark.parametrize(
    ("shape", "launches", "blocks", "threads"),
    [
        ((7, 1000003), 1, 3907, (256,)),  # a thread for each column
        ((64, 32768), 1, 512, (16, 8)),
        ((300, 100), 1, 7, (4, 32)),
        ((4096, 4096), 1, 128, (8, 128)),
        ((4096, 1003), 2, 1024, (32, 8)),  # pieces, and what combines what these have
        ((100000, 64), 2, 781, (16, 16)),
    ],
)
def test_blocks_and_launches_of_columns(shape, launches: int, blocks: int, threads) -> None:
    found = compiled(sums, torch.empty(shape, device="meta")).launches
    assert len(found) == launches
    assert math.prod(found[0].grid) == blocks
    assert found[0].block == threads
    assert (found[0].shared == 0) == (len(threads) == 1)


@needs_gpu
@pytest.mark.parametrize("shape", [(7, 1003), (4096, 1003), (1001, 1003)])
def test_a_thread_asks_once_for_its_column(shape: tuple[int, int]) -> None:
    """And for its row in what is left of them alone; others are loaded eight at a time."""
    kernel = compiled(sums, torch.empty(shape, device="meta")).source().split("__global__")[1]
    along = kernel.split("__syncthreads")[0]
    loops = re.findall(r"for \(int (\w+)", along)
    asked = re.findall(r"if \((.*)\) {", along)
    assert len(asked) == (2 if shape[0] == 1001 else 1)
    assert asked[0].endswith("thread < 1003")
    assert along.index("if (") < along.index("for (")
    whole = ["turn", "step"] if shape[0] == 4096 else ["step"]
    assert loops[: len(whole)] == whole
    assert "halving" in loops or loops == whole


@needs_gpu
@pytest.mark.parametrize(
    "shape",
    [(1, 300), (2, 9), (15, 130), (17, 260), (33, 40001), (130, 516), (1001, 1003), (9001, 24)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_rows_that_are_no_whole_turns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Numbers whose sums are exact, of which each counts."""
    x = (torch.arange(shape[0] * shape[1]) * 7 % 3 - 1).reshape(shape).to(dtype)
    found, exact = gpu.call(compiled(sums, x), (x,))[0], x.double().sum(0)
    assert torch.equal(found.double(), exact.to(found.dtype).double())


@needs_gpu
@pytest.mark.parametrize(
    "shape", [(7, 5), (300, 100), (1000, 33), (40, 1003), (3000, 64), (17, 70001), (9001, 24)]
)
@pytest.mark.parametrize("fn", [statistics, gradients_of_norm, with_another, batch_norm, powers])
def test_columns_together(fn, shape: tuple[int, int]) -> None:
    x, w = torch.randn(shape), torch.randn(shape[1])
    args = {"x": x, "g": torch.randn(shape), "w": w}
    args = [args[name] for name in fn.__code__.co_varnames[: fn.__code__.co_argcount]]
    assert rules(fn, *args) <= {"Columns", "ShortColumns"}
    check(fn, *args, within=2e-5)


@needs_gpu
def test_columns_of_any_size_together() -> None:
    specs = [bt.Tensor["n", "m"], bt.Tensor["n", "m"]]
    program = bt.jit("gpu")(gradients_of_norm).lower(*specs).compile()
    assert len(program.launches) == 2
    for shape in ((3, 100), (700, 64), (5000, 33)):
        check(gradients_of_norm, torch.randn(shape), torch.randn(shape), program=program)


@needs_gpu
def test_what_a_block_cannot_hold_is_done_by_several() -> None:
    assert len(compiled(powers, torch.randn(4096, 64)).launches) == 4


@needs_gpu
def test_squares_go_with_their_sum_and_what_needs_nothing() -> None:
    x = torch.empty(4096, 1024, device="meta")
    reads, _ = traffic(with_another, x, x[0])
    assert reads["x"] == x.numel() * 9 // 8  # a thread starts from the first of its eight rows


@needs_gpu
def test_independent_reductions_go_first_together() -> None:
    def fn(x):
        m = x.mean(0)
        return ((x - m).abs()).mean(0), x.amax(0) + m

    x = torch.empty(4096, 1024, device="meta")
    reads, _ = traffic(fn, x)
    assert reads["x"] == 2 * x.numel()


def variance(x):
    return x.var(0), x.mean(0)


def deviation_of_a_function(x):
    y = x * torch.sigmoid(x)
    return y.std(0, correction=0), y.sum(0)


def distances(x):
    return (((x - x.mean(0, keepdim=True)) ** 2).sum(0),)


MOMENTS = (variance, deviation_of_a_function, distances)


def rows_of(kind: str, shape: tuple[int, int]) -> torch.Tensor:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if kind == "far from zero":
        return x + 300
    if kind == "an outlier first":
        x[0] = 1e4
    if kind == "outliers":
        x[5::701] = 1e4
    return x


@needs_gpu
@pytest.mark.parametrize("fn", MOMENTS)
@pytest.mark.parametrize("shape", [(4096, 64), (1001, 1003), (9001, 24), (7000, 260)])
@pytest.mark.parametrize("kind", ["plain", "far from zero", "an outlier first", "outliers"])
def test_moments_of_columns(fn, shape: tuple[int, int], kind: str) -> None:
    x = rows_of(kind, shape).float()
    program = compiled(fn, x)
    assert len(program.launches) <= 2
    check(fn, x, within=2e-5, program=program)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4096, 4096), (4096, 1003), (16384, 1024)])
def test_columns_are_read_once_for_their_moments(shape, dtype) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    program = compiled(lambda x: x.var(0), x)
    is_whole = shape[1] == 4096
    assert len(program.launches) == (1 if is_whole else 2)
    assert sum("* __restrict__ x," in text for text in program.source().split("__global__")) == 1


@needs_gpu
@pytest.mark.parametrize("fn", MOMENTS)
def test_moments_of_columns_of_any_size(fn) -> None:
    program = bt.jit("gpu")(fn).lower(bt.Tensor["n", "m"]).compile()
    assert len(program.launches) == 2
    for shape in ((2, 100), (37, 5), (700, 64), (5000, 33)):
        check(fn, rows_of("an outlier first", shape).float(), within=2e-5, program=program)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_moments_of_columns_of_other_dtypes(dtype: torch.dtype) -> None:
    x = rows_of("far from zero" if dtype == torch.float64 else "plain", (4100, 72)).to(dtype)
    check(variance, x, within=1e-9 if dtype == torch.float64 else 8e-3)


@needs_gpu
@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 1, 4099])
def test_columns_with_what_is_no_number_stay_so(number: float, place: int) -> None:
    x = rows_of("plain", (4100, 5)).float()
    x[place, 3] = number
    for found, exact in zip(gpu.call(compiled(variance, x), (x,)), variance(x.double())):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6, equal_nan=True)


@needs_gpu
def test_numbers_of_columns_whose_squares_are_too_large() -> None:
    """The same number everywhere has no variance."""
    x = torch.full((4100, 6), 3e30)
    x[:, 1] = -2e34
    found, mean = gpu.call(compiled(variance, x), (x,))
    assert torch.equal(found, torch.zeros(6))
    torch.testing.assert_close(mean, x[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize("fn", [statistics, with_another, batch_norm, deviation_in_the_middle])
def test_one_kernel_before_and_after_columns(fn, target: str) -> None:
    args = torch.randn(4096, 64), torch.randn(64)
    args = args[: fn.__code__.co_argcount]
    program = bt.jit(target)(fn).lower(*args).compile()
    assert len(program.kernels) == 1
    if target == "cpu":
        assert "pow" not in program.source("tir")
        found = bt.jit("cpu")(fn)(*args)
        for ours, exact in zip(found, fn(*(x.double() for x in args))):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@needs_gpu
def test_norms_along_columns() -> None:
    check(normalized, torch.randn(200, 96), torch.rand(96), within=2e-5)


def along_channels(x):
    m = x.mean(1, keepdim=True)
    v = ((x - m) ** 2).mean(1, keepdim=True)
    y = (x - m) * torch.rsqrt(v + 1e-6)
    return x.softmax(1), torch.log_softmax(x, 1), F.normalize(x, dim=1), y, x.logsumexp(1)


def norm_of_channels(x, w):
    """As ConvNeXt has it, with weights of the channels."""
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return (w[:, None] * ((x - u) / torch.sqrt(s + 1e-6)) + w.exp()[:, None],)


@pytest.mark.parametrize("target", ["cpu", pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize("channels", [24, 100])
def test_norm_of_channels_is_one_kernel_with_their_weights(target: str, channels: int) -> None:
    x, w = torch.randn(4, channels, 1000), torch.rand(channels)
    program = bt.jit(target)(norm_of_channels).lower(x, w).compile()
    assert len(program.kernels) == 1
    if target == "gpu":
        check(norm_of_channels, x, w, within=2e-5)
        return
    (found,), (exact,) = bt.jit()(norm_of_channels)(x, w), norm_of_channels(x.double(), w.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def loss_of_pixels(x, t):
    return (F.cross_entropy(x, t, reduction="none"),)


@needs_gpu
@pytest.mark.parametrize("channels", [2, 21, 64, 65, 150, 500])
@pytest.mark.parametrize("size", [(1, 3), (3, 11), (16, 16)])
def test_short_columns(channels: int, size: tuple[int, int]) -> None:
    x = torch.randn(3, channels, *size)
    assert rules(along_channels, x) <= {"ShortColumns", "Columns"}
    check(along_channels, x, within=2e-5)


@needs_gpu
@pytest.mark.parametrize("fn", [lambda x: (x.softmax(1),), lambda x: (x - x.mean(1, True),)])
@pytest.mark.parametrize("channels", [21, 100, 768])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_short_columns_are_read_once(fn, channels: int, dtype: torch.dtype) -> None:
    x = torch.empty(8, channels, 64, 64, dtype=dtype, device="meta")
    assert rules(fn, x) == {"ShortColumns"}
    assert len(compiled(fn, x).launches) == 1
    reads, writes = traffic(fn, x)
    threads = -(-channels // 32) if channels > 64 else 1
    padded = 32 * threads * x.numel() // channels  # steps of a loop whose last one has a test
    assert x.numel() <= reads["x"] <= padded
    assert sum(n for name, n in writes.items() if name) <= padded


@needs_gpu
def test_short_columns_of_halves_and_of_any_batch() -> None:
    x = torch.randn(2, 100, 70)
    program = bt.jit("gpu")(along_channels).lower(bt.Tensor["n", 100, 70]).compile()
    for count in (2, 5):
        check(along_channels, torch.randn(count, 100, 70), within=2e-5, program=program)
    check(along_channels, x.bfloat16(), within=4e-2)


def moments(x):
    y = x - x.mean(1, keepdim=True)
    return y, *((y + 0.1 * n).abs().sum(1) for n in range(14))


@needs_gpu
@pytest.mark.parametrize("channels", [512, 1024])
def test_more_reductions_than_a_block_shares(channels: int) -> None:
    check(moments, torch.randn(2, channels, 33).double(), within=1e-12)


@needs_gpu
def test_columns_of_transposed_arguments_of_any_size() -> None:
    def sums(x):
        return x.sum(), x.sum(1, keepdim=True), x.amax(0)

    x = torch.randn(30, 33).T
    program = bt.jit("gpu", dynamic=True)(sums).lower(x).compile()
    for shape in ((30, 33), (7, 100)):
        check(sums, torch.randn(shape).T, program=program)
    check(sums, torch.randn(200, 33)[:40].T)


@needs_gpu
def test_loss_of_each_pixel_is_one_kernel() -> None:
    x, t = torch.randn(2, 21, 9, 10), torch.randint(0, 21, (2, 9, 10))
    t[0, 3] = -100
    assert len(compiled(loss_of_pixels, x, t).launches) == 1
    check(loss_of_pixels, x, t)


@pytest.mark.parametrize("kind", ["metal", "opencl", "webgpu"])
def test_short_columns_in_other_languages(kind: str) -> None:
    program = bt.jit(bt.Target(kind))(lambda x: x.softmax(1)).lower(torch.randn(2, 100, 50))
    compiled = program.compile()
    assert len(compiled.kernels) == 1
    assert compiled.source(kind)


def mean_squared_error(x, y):
    return ((x - y) ** 2).mean() * 2


def by_the_largest(x, y):
    z = x * y
    return z / z.abs().amax()


@pytest.mark.parametrize("fn", [mean_squared_error, by_the_largest])
@pytest.mark.parametrize(
    "shapes",
    [((512, 1024), (1024,)), ((3, 300_000), (300_000,)), ((4096, 100), (4096, 1)), ((7, 9), (9,))],
)
def test_whole_tensors_with_what_is_broadcast(fn, shapes) -> None:
    args = [torch.randn(shape) for shape in shapes]
    jitted = bt.jit("cpu")(fn)
    exact = fn(*(x.double() for x in args))
    torch.testing.assert_close(jitted(*args).double(), exact, rtol=1e-5, atol=1e-5)
    program = jitted.lower(*args).compile()
    if args[1].numel() > 9:
        assert len(program.kernels) == 1
        assert "T.parallel" in program.source("tir")


@pytest.mark.parametrize("fn", [mean_squared_error, by_the_largest])
def test_whole_tensors_of_any_size_with_what_is_broadcast(fn) -> None:
    jitted = bt.jit("cpu", dynamic=True)(fn)
    for shape in ((3, 5), (300, 1000), (1000, 33), (2, 100_000)):
        x, y = torch.randn(shape), torch.randn(shape[1])
        exact = fn(x.double(), y.double())
        torch.testing.assert_close(jitted(x, y).double(), exact, rtol=1e-5, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize("shape", [(5000, 17), (70, 640)])
def test_squares_that_are_too_large_are_infinite(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[0, 6], x[3, 7], x[9, 2] = 1e30, torch.nan, torch.inf
    found = gpu.call(bt.jit(gpu.TARGET)(lambda x: x.var(0)).lower(x).compile(), (x,))
    torch.testing.assert_close(found, x.var(0), rtol=1e-4, atol=0.0, equal_nan=True)
    assert found[6] == torch.inf
