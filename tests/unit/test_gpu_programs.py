"""Kernels that are written out for a GPU's threads: values, and what is left of memory traffic."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
import tvm_ffi
from tvm import ir, tirx
from tvm.script import tirx as T

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

COLUMNS = (1, 31, 32, 33, 1000, 1024, 4097, 32768)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def rows(x, w):
    """A kernel for each way to work along rows."""
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
    z = F.layer_norm(x + w, x.shape[-1:], w)
    return torch.softmax(x, -1), y, z, torch.logsumexp(x, -1), x.sum(-1), F.silu(x + w) * x


def losses(x, t):
    return F.cross_entropy(x, t), x.argmax(-1)


def running(x):
    return x.cumsum(-1), x.cumprod(-1)


def columns(x):
    return x.sum(0), x.mean(0, keepdim=True) * 2, x.amax(0)


def whole(x):
    return x.sum(), x.mean() * 2, x.max()


def turned(x, y):
    return x.T + y, x.T.contiguous()


def compiled(fn, *args):
    return bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()


def rules(fn, *args) -> set[str]:
    functions = bt.jit(target=gpu.TARGET)(fn).lower(*args).schedule().mod.functions.values()
    found = [func for func in functions if isinstance(func, tirx.PrimFunc)]
    return {str(func.attrs["babytriton.rule"]) for func in found}


def check(fn, *args, within: float = 1e-5, program=None) -> None:
    """Compare with torch in float64, in each order of threads."""
    program = compiled(fn, *args) if program is None else program
    wide = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in args]
    exact = fn(*wide)
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            for ours, theirs in zip(gpu.call(program, args), exact):
                assert ours.shape == theirs.shape
                torch.testing.assert_close(
                    ours.double(), theirs.double(), rtol=within, atol=within * 4
                )


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("length", COLUMNS)
def test_rows(count: int, length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(count, length, generator=generator), torch.rand(length, generator=generator)
    check(rows, x, w, within=2e-5)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("length", [33, 1024, 4097])
def test_dtypes(dtype: torch.dtype, length: int) -> None:
    x, w = torch.randn(3, length).to(dtype), torch.rand(length).to(dtype)
    program = compiled(rows, x, w)
    with emulator.thread_order("shuffled", seed=2):
        found = gpu.call(program, (x, w))
    for ours, theirs, own in zip(found, rows(x.double(), w.double()), rows(x, w)):
        assert ours.dtype == own.dtype
        within = {torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=within * scale)


def test_many_rows() -> None:
    check(rows, torch.randn(4096, 33), torch.rand(33), within=2e-5)


@pytest.mark.parametrize("shape", [(7, 5), (300, 100), (1000, 33), (40, 1003)])
def test_columns(shape: tuple[int, int]) -> None:
    assert rules(columns, torch.randn(shape)) == {"Columns"}
    check(columns, torch.randn(shape))


def along_columns(x):
    """A kernel for each function that goes along the columns more than once."""
    return x.softmax(0), x.var(0), x.logsumexp(0), x.argmax(0), F.normalize(x, dim=0)


@pytest.mark.parametrize("shape", [(64, 1000), (7, 40, 33), (3000, 16)])
def test_columns_in_several_passes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert rules(along_columns, x) <= {"Columns", "ShortColumns", "Elementwise"}
    check(along_columns, x, within=1e-5)


def test_columns_of_halves() -> None:
    check(columns, torch.randn(100, 64).half(), within=2e-3)


@pytest.mark.parametrize("shape", [(31,), (300, 1000), (100003,)])
def test_whole(shape: tuple[int, ...]) -> None:
    check(whole, torch.randn(shape), within=1e-5)


def test_long_rows_fill_the_gpu() -> None:
    x, w = torch.randn(2, 70000), torch.rand(70000)
    assert rules(rows, x, w) == {"LongRows", "Elementwise"}
    check(rows, x, w, within=2e-5)
    grids = [math.prod(launch.grid) for launch in compiled(rows, x, w).launches]
    assert sorted(grids)[:3] == [2, 17 * 2, 17 * 2]  # one for what rows have one number of


def less_mean(x):
    return (x - x.mean((0, 2), keepdim=True),)


def batch_norm(x):
    m = x.mean((0, 2), keepdim=True)
    d = x - m
    v = (d * d).mean((0, 2), keepdim=True)
    return d * torch.rsqrt(v + 1e-5), v


def less_largest(x):
    return (torch.exp(x - x.amax((0, 1, 3), keepdim=True)),)


@pytest.mark.parametrize("shape", [(6, 5, 64), (3, 7, 33), (64, 40, 128), (1, 3, 5000)])
def test_rows_that_lie_behind_other_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for fn in (less_mean, batch_norm):
        program = compiled(fn, x)
        check(fn, x, within=1e-4, program=program)
        assert rules(fn, x) <= {"Rowwise", "LongRows"}
        assert len(program.kernels) == 1
        assert "_other" not in program.source()
    check(less_largest, torch.randn(3, *shape))


def test_channels_are_read_in_vectors() -> None:
    program = bt.jit(target=bt.Target("cuda", arch="sm_80"))(batch_norm)
    program = program.lower(torch.empty(64, 256, 784, device="meta")).compile()
    # In both of the loops over a row, and for the last vector behind each.
    assert program.source().count("*(const float4*)(x + ") == 4
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    (launch,) = program.launches
    assert launch.registers is not None
    assert launch.registers <= 128
    assert launch.spilled == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_vectors_of_more_than_2_to_the_31_elements(dtype: torch.dtype) -> None:
    x = torch.empty(70000, 20000, dtype=dtype, device="meta")
    target = bt.Target("cuda", arch="sm_80")
    program = bt.jit(target=target)(lambda x, y: torch.cat([x, y], -1)).lower(x, x).compile()
    vector = {torch.float32: "float4", torch.float16: "uint4", torch.int8: "int4"}[dtype]
    assert program.source().count(f"*(const {vector}*)") == 2


def normalized(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return torch.softmax(x, -1), torch.logsumexp(x, -1), e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "rule"), [((3, 70001), "LongRows"), ((130, 45000), "Rowwise")])
def test_a_maximum_and_its_exponentials_share_a_pass(
    shape: tuple[int, int], rule: str, dtype: torch.dtype
) -> None:
    x = torch.randn(shape).to(dtype)
    x[0] *= 30
    x[1] = torch.linspace(-100, 100, shape[1])
    x[2, :-1] = -math.inf
    assert rules(normalized, x) == {rule}
    program = compiled(normalized, x)
    if rule == "LongRows":
        # A sweep for all reductions, and one for the results, beside what rows have one number of.
        # What is written by hand rounds the exponentials to half precision before it adds them up:
        # a sweep of its own.
        assert len(program.launches) == 3 + (dtype == torch.bfloat16)
    # The last bits of half precision, and the sums of so many small numbers in float32.
    within = 1e-2 if dtype == torch.bfloat16 else 2e-5
    for ours, theirs in zip(gpu.call(program, (x,)), normalized(x.double())):
        torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=within)


def of_other(x, y):
    return torch.exp(y - x.amax(-1, True)).sum(-1)


def of_unmasked(x, y):
    top = x.masked_fill(y < 0, -1e9).amax(-1, True)
    return (torch.exp(x - top) * (y >= 0)).sum(-1)


def of_half(x, y):
    return torch.exp(x / 2 - x.amax(-1, True)).sum(-1)


def less_twice(x, y):
    return torch.exp(x - 2 * x.amax(-1, True)).sum(-1)


def less_nothing(x, y):
    return torch.exp(x - x.amax(-1, True) * 0).sum(-1)


def less_least(x, y):
    return torch.exp(x - x.amin(-1, True)).sum(-1)


def weighted(x, y):
    return (torch.exp(x - x.amax(-1, True)) * y).sum(-1)


def finite(x, y):
    top = x.amax(-1, True)
    return torch.exp(x - torch.where(torch.isinf(top), 0.0, top)).sum(-1)


@pytest.mark.parametrize("shape", [(4, 70000), (130, 45000)])
@pytest.mark.parametrize(
    ("fn", "shares"),
    [
        *[(fn, False) for fn in (of_other, of_unmasked, of_half)],
        *[(fn, False) for fn in (less_twice, less_nothing, less_least)],
        *[(fn, True) for fn in (weighted, finite)],
    ],
)
def test_only_exponentials_less_their_own_maximum_share_its_pass(
    fn, shares: bool, shape: tuple[int, int]
) -> None:
    """The sum so far of others might be too large, or too small, until the maximum is known."""
    x = torch.linspace(-40, 20, shape[1]).expand(shape).contiguous()
    x[1, : shape[1] // 2] = -math.inf
    y = torch.rand(shape)  # whose sum loses no digits
    program = compiled(fn, x, y)
    assert ("_shift" in program.source()) == shares
    torch.testing.assert_close(
        gpu.call(program, (x, y)).double(),
        fn(x.double(), y.double()),
        rtol=1e-4,
        atol=1e-9,
        equal_nan=True,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(-1).mean(),
        lambda x: torch.logsumexp(x, -1).mean(),
        lambda x: (x.sum(-1, True) * 2).sum(0),
        lambda x: x.sum(0) + x.amax(1).sum(),
        lambda x: x.amax(0) + x.var(0, correction=0),
    ],
)
def test_reductions_over_axes_of_size_1(fn, dynamic: bool) -> None:
    for length in (40, 70000):
        x = torch.randn(1, length)
        program = bt.jit(target=gpu.TARGET, dynamic=dynamic)(fn).lower(x).compile()
        within = 1e-5 * max(1.0, length**0.5)
        torch.testing.assert_close(
            gpu.call(program, (x,)).double(), fn(x.double()), rtol=1e-5, atol=within
        )


@pytest.mark.parametrize("shape", [(4, 70000), (130, 45000)])
def test_infinities_and_nan_in_rows_that_are_read_once(shape: tuple[int, int]) -> None:
    def both(x):
        return torch.softmax(x, -1), torch.logsumexp(x, -1)

    x = torch.randn(shape)
    x[0], x[1, 7], x[2, 60], x[3, :40000] = -math.inf, math.inf, math.nan, -math.inf
    for ours, theirs in zip(gpu.call(compiled(both, x), (x,)), both(x.double())):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=1e-6, equal_nan=True)


def test_results_do_not_depend_on_the_order() -> None:
    x = torch.randn(200, 1000)
    program = compiled(whole, x)
    found = []
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found.append(gpu.call(program, (x,)))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


@pytest.mark.parametrize("rows_", [1, 11, 300])
@pytest.mark.parametrize("length", [32, 33, 130, 1000, 4097])
def test_running_sums(rows_: int, length: int) -> None:
    x = 1 + torch.randn(rows_, length) / 50
    assert rules(running, x) == {"Scan"}
    check(running, x, within=5e-5)


def test_a_long_running_sum_fills_the_gpu() -> None:
    x = torch.randn(3, 100000)
    program = compiled(lambda x: (x.cumsum(1),), x)
    assert min(math.prod(launch.grid) for launch in program.launches) > 50
    check(lambda x: (x.cumsum(1),), x, within=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.int64], ids=str)
def test_running_sums_in_torchs_accumulators(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 700) * 9).to(dtype)
    ours, theirs = gpu.call(compiled(lambda x: (x.cumsum(-1),), x), (x,))[0], x.cumsum(-1)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=0.25 if dtype.itemsize == 2 else 1e-9)


def test_long_running_sums_over_other_axes_are_shared() -> None:
    def across(x):
        return x.cumsum(0), x.cumsum(1)

    x = torch.randn(300, 260, 5)
    assert rules(across, x) <= {"Scan", "Transposed", "Elementwise"}
    check(across, x, within=1e-4)


def test_running_sums_over_other_axes_and_short_ones_are_walked() -> None:
    def walked(x):
        return x.cumsum(0), x[:, :20].cumsum(1)

    x = torch.randn(50, 70)
    assert "Scan" not in rules(walked, x)
    check(walked, x, within=1e-4)


@pytest.mark.parametrize("length", [10, 1000, 32768])
def test_losses(length: int) -> None:
    check(losses, torch.randn(5, length), torch.arange(5) * 7 % length)


@pytest.mark.parametrize("shape", [(64, 96), (70, 33), (9, 200)])
def test_transposes_go_through_shared_memory(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape[::-1])
    assert rules(turned, x, y) == {"Transposed"}
    check(turned, x, y)


def little_of_each(x, y):
    return x.softmax(-1), (y * y).sum(-1), x.amax(0), y.mean(0), x.exp(), y + 1


@pytest.mark.parametrize("shape", [(1, 7), (16, 33), (120, 100)])
def test_little_kernels_of_other_tensors_side_by_side(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    assert len(compiled(little_of_each, x, y).kernels) < 5
    check(little_of_each, x, y)


def test_kernels_that_are_scheduled_are_not_fused_again() -> None:
    def put(x, i, s):
        return torch.scatter(x, 0, i, s)

    args = torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)
    scheduled = bt.jit(target=gpu.TARGET)(put).lower(*args).schedule()
    program = scheduled.compile()
    functions = scheduled.mod.functions_items()
    kernels = {var.name_hint for var, func in functions if isinstance(func, tirx.PrimFunc)}
    assert set(re.findall(r"__global__ .*?(\w+_kernel)", program.source())) == kernels
    assert gpu.call(program, args) == torch.tensor(2.0)


@pytest.mark.parametrize("size", [1, 3, 1000, 1003, 5000])
def test_elementwise_of_any_size(size: int) -> None:
    def several(x, y, z):
        return (x + y) * z, x > y, (x * z).half(), torch.where(x > 0, y, 1.0)

    x, y = torch.randn(size), torch.randn(size)
    check(several, x, y, torch.randn(()), within=1e-3)


def masks(x, m):
    return torch.where(m, x, 0), x.masked_fill(m, -1).softmax(-1), x > 0.5, m & (x < 0)


@pytest.mark.parametrize("length", COLUMNS[:-1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks(dtype: torch.dtype, length: int) -> None:
    x = torch.randn(7, length).to(dtype)
    check(masks, x, torch.rand(7, length) > 0.5, within=1e-5 if dtype == torch.float32 else 0.02)


def test_masks_are_moved_in_vectors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x, m = torch.ones(64, 1024).to(dtype), torch.ones(64, 1024, dtype=torch.bool)
        program = compiled(lambda x, m: (torch.where(m, x, 0), x > 0), x, m)
        source = program.source("cuda")
        assert "of_bools" not in source
        assert re.search(r"\*\(uint[24]?\*\)m_vector = \*\(const uint[24]?\*\)\(m ", source)
        if cuda.has_compiler():
            assert ".U8" not in program.source("sass")


def test_broadcasts() -> None:
    def several(x, b, c):
        return x + b, x * c, x - b * c

    x, b, c = torch.randn(5, 6, 64), torch.randn(64), torch.randn(5, 1, 1)
    check(several, x, b, c)
    check(several, torch.randn(5, 6, 7), torch.randn(7), c)


def test_symbolic_sizes() -> None:
    jitted = bt.jit(target=gpu.TARGET, dynamic=True)(rows)
    example = torch.randn(6, 48), torch.rand(48)
    program = jitted.lower(*example).compile()
    for count, length in ((6, 48), (3, 33), (5, 1000), (2, 4099)):
        check(rows, torch.randn(count, length), torch.rand(length), within=2e-5, program=program)


@pytest.mark.parametrize("shape", [(1, 300), (3, 64), (40, 1)])
def test_products_with_few_rows(shape: tuple[int, int]) -> None:
    def product(x, w, b):
        return F.gelu(x @ w + b), F.linear(x, w.T.contiguous())

    count, length = shape
    args = torch.randn(shape), torch.randn(length, 128), torch.randn(128)
    check(product, *args, within=5e-5)
    if count <= 4:
        assert not rules(product, *args) & {"Matmul", "Fallback"}


def traffic(fn, *args) -> tuple[Counter[str], Counter[str]]:
    """How many elements of each tensor the only kernel reads and writes."""
    (func,) = [
        func
        for func in bt.jit(target=gpu.TARGET)(fn).lower(*args).schedule().mod.functions.values()
        if isinstance(func, tirx.PrimFunc)
    ]
    params = {param: param.name for param in func.params}
    reads: Counter[str] = Counter()
    writes: Counter[str] = Counter()

    def visit(stmt, times: int) -> None:
        def loop(node):
            visit(node.body, times * int(node.extent))
            return tvm_ffi.WalkResult.SKIP

        def load(node):
            reads[params.get(node.source, "")] += times

        def store(node):
            writes[params.get(node.buffer, "")] += times

        entries = [(tirx.For, loop), (ir.TensorLoad, load), (tirx.BufferStore, store)]
        tvm_ffi.structural_walk(stmt, entries, order="pre")

    visit(func.body, 1)
    return reads, writes


@pytest.mark.parametrize("fn", [torch.softmax, F.layer_norm, F.silu])
@pytest.mark.parametrize("length", [256, 1024, 4096, 32768])
def test_each_number_is_read_and_written_once(fn, length: int) -> None:
    def called(x):
        if fn is F.layer_norm:
            return F.layer_norm(x, (length,))
        return F.silu(x) if fn is F.silu else torch.softmax(x, -1)

    x = torch.randn(256, length)
    reads, writes = traffic(called, x)
    extra = 2 * 256 * 1024 if fn is F.layer_norm else 0  # the row's first number, by each thread
    assert x.numel() <= reads["x"] <= x.numel() + extra
    assert writes["called"] == x.numel()


def statistics(x):
    return x.sum(-1), x.mean(-1), x.amax(-1), x.amin(-1), x.abs().sum(-1)


def of_whole(x):
    return x.sum(), x.amax(), x.min(), (x * x).mean()


def of_pair(x, y):
    d = x - y
    return d.abs().mean(-1), (d * d).mean(-1), d.abs().amax(-1)


@pytest.mark.parametrize("shape", [(256, 4096), (256, 40960), (256, 65536), (4, 1 << 17)])
@pytest.mark.parametrize("fn", [statistics, of_whole, of_pair])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_statistics_read_each_number_once(fn, shape: tuple[int, int], dtype: torch.dtype) -> None:
    args = [torch.empty(shape, dtype=dtype, device="meta")] * fn.__code__.co_argcount
    reads, _ = traffic(fn, *args)
    for name in fn.__code__.co_varnames[: len(args)]:
        assert reads[name] == args[0].numel()


@pytest.mark.parametrize("fn", [statistics, of_whole, of_pair])
def test_statistics_of_any_size_read_each_number_once(fn) -> None:
    specs = [bt.Tensor["n", "m"]] * fn.__code__.co_argcount
    program = bt.jit(target=gpu.TARGET)(fn).lower(*specs).compile()
    # Of pieces, and of their results, where there is one row, which may be long.
    assert len(program.launches) == 1 + (fn is of_whole)
    # Of a long row once for vectors, and once for what is behind these.
    reads = re.findall(r"= x\[|\*\)\(x \+", program.source())
    assert len(reads) == len(program.launches)
    for shape in ((3, 100), (7, 1500)):
        check(fn, *(torch.randn(shape) for _ in specs), within=2e-5, program=program)


@pytest.mark.parametrize(("fn", "sweeps"), [(torch.logsumexp, 1), (torch.log_softmax, 2)])
def test_exponentials_of_any_size_share_the_sweep_of_their_maximum(fn, sweeps: int) -> None:
    program = bt.jit(target=gpu.TARGET)(lambda x: fn(x, -1)).lower(bt.Tensor["n", "m"]).compile()
    assert len(re.findall(r"= x\[", program.source())) == sweeps
    for shape in ((3, 100), (7, 1500)):
        x = torch.randn(shape)
        found = gpu.call(program, (x,))
        torch.testing.assert_close(found.double(), fn(x.double(), -1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(5, 33), (40, 4097), (3, 1 << 17)])
@pytest.mark.parametrize("fn", [statistics, of_whole, of_pair])
def test_statistics(fn, shape: tuple[int, int]) -> None:
    args = [torch.randn(shape) for _ in range(fn.__code__.co_argcount)]
    long = {"LongRows"} if shape[1] > 1 << 16 or (fn is of_whole and shape[1] > 33) else {"Rowwise"}
    assert rules(fn, *args) == long
    # A sum of so many numbers that nearly cancel each other.
    check(fn, *args, within=5e-5 if fn is not of_whole else 2e-4)


def dependent(x, w):
    """Reductions of several sweeps, of which some share a sweep with others of their own."""
    y = x + w
    s = x.sum(-1)
    e = torch.softmax(y, -1)
    deviation = (x - s[:, None] / x.shape[-1]).abs().mean(-1)
    return torch.logsumexp(x, -1), torch.logsumexp(y, -1), s, (x * w).sum(-1), e * w, deviation


@pytest.mark.parametrize("shape", [(5, 100), (3, 4097), (3, 70001), (130, 45000)])
def test_sums_of_exponentials_share_a_sweep_with_others(shape: tuple[int, int]) -> None:
    x, w = torch.randn(shape), torch.rand(shape)
    x[0] *= 30
    x[1] = torch.linspace(-50, 50, shape[1])
    x[2, 1:] = -200
    program = compiled(dependent, x, w)
    assert len(program.kernels) == 1
    exact = dependent(x.double(), w.double())
    for order in emulator.ORDERS[:1] if shape[0] > 100 else emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            for ours, theirs in zip(gpu.call(program, (x, w)), exact):
                scale = max(1.0, theirs.abs().max().item())
                close = {"rtol": 2e-5, "atol": 1e-5 * scale}
                torch.testing.assert_close(ours.double(), theirs, **close)


def test_no_number_at_all_is_a_sum_of_exponentials_beside_others() -> None:
    def f(x):
        return torch.logsumexp(x, -1), x.amax(-1), torch.softmax(x, -1), (x > 0).sum(-1)

    x = torch.full((3, 70001), -math.inf)
    x[1, 7], x[2, 9] = 3.0, math.inf
    for ours, theirs in zip(gpu.call(compiled(f, x), (x,)), f(x.double())):
        torch.testing.assert_close(ours.double(), theirs.double(), equal_nan=True)


def test_rows_that_leave_no_room_in_registers_are_read_apart() -> None:
    def norms(x):
        return F.layer_norm(x, x.shape[-1:]), x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1)

    def launches(length: int) -> int:
        return len(compiled(norms, torch.empty(256, length, device="meta")).launches)

    # Registers keep it all, or rows of each function alone; or no rows at all.
    assert [launches(length) for length in (4096, 32768, 40960, 65536)] == [1, 1, 2, 1]


def embedded(i, w, b):
    found = F.embedding(i, w)
    return found * 2 + b, torch.index_select(w, 0, i.reshape(-1)), w[i]


@pytest.mark.parametrize("length", [8, 64, 33, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_rows_at_places_from_a_tensor(length: int, dtype: torch.dtype) -> None:
    i, w = torch.randint(0, 50, (7, 6)), torch.randn(50, length).to(dtype)
    args = i, w, torch.randn(length).to(dtype)
    program = compiled(embedded, *args)
    exact = embedded(*args)
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            for ours, theirs in zip(gpu.call(program, args), exact):
                torch.testing.assert_close(ours, theirs)
    vector = {torch.float32: "float4", torch.float16: "uint4"}[dtype]
    assert (f"*(const {vector}*)(w + " in program.source()) == (length % 8 == 0)


def test_norms_of_embedded_rows() -> None:
    def normed(i, w, b):
        return (F.rms_norm(F.embedding(i, w), (64,), b),)

    check(normed, torch.randint(0, 50, (9,)), torch.randn(50, 64), torch.randn(64))


def decoded(x, w, b):
    return F.gelu(F.linear(x, w, b))


@pytest.mark.parametrize("rows_", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_are_read_once_for_a_few_rows(rows_: int, dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(s).to(dtype) for s in ((rows_, 512), (1032, 512), (1032,)))
    reads, _ = traffic(decoded, x, w, b)
    assert reads["w"] == w.numel()
    program = compiled(decoded, x, w, b)
    assert program.source().count("*)(w + ") == 1
    exact = decoded(*(given.double() for given in (x, w, b)))
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found = gpu.call(program, (x, w, b)).double()
        torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2)


def test_a_few_matrices_that_share_their_weights_are_taken_together() -> None:
    def biased(x, bias):
        return (torch.softmax(x + bias, -1),)

    x, bias = torch.randn(3, 1104, 64), torch.randn(1104, 64)
    reads, _ = traffic(biased, x, bias)
    assert reads["bias"] == bias.numel()
    check(biased, x, bias)


def test_rows_that_share_a_little_are_taken_one_by_one() -> None:
    x, w = torch.randn(3, 1104, 64), torch.randn(64)
    source = compiled(lambda x, w: F.rms_norm(x, (64,), w), x, w).source()
    assert source.count("*)(x + ") == 1


def test_rows_too_long_to_be_kept_are_read_twice() -> None:
    def softmax(x):
        return torch.softmax(x, -1)

    x = torch.randn(256, 65536)
    reads, writes = traffic(softmax, x)
    assert (reads["x"], writes["softmax"]) == (2 * x.numel(), x.numel())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("fn", [rows, columns, statistics])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_machine_code(arch: str, fn, dtype: torch.dtype) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    x, w = torch.randn(256, 4096).to(dtype), torch.rand(4096).to(dtype)
    args = (x, w) if fn is rows else (x,)
    program = bt.jit(target=bt.Target("cuda", arch=arch))(fn).lower(*args).compile()
    for launch in program.launches:
        assert launch.registers is not None
        assert launch.registers <= 128, launch
        assert launch.spilled == 0, launch
    sass = program.source("sass")
    assert "LDG.E.128" in sass
    assert fn is statistics or "STG.E.128" in sass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [16384, 20480, 32768, 65536])
def test_what_rows_share_spills_no_registers(length: int, dtype: torch.dtype) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    x, w = torch.empty(256, length, dtype=dtype), torch.empty(length, dtype=dtype)
    for launch in compiled(rows, x, w).launches:
        assert launch.spilled == 0, launch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.uint8], ids=str)
def test_symbolic_sizes_of_narrow_dtypes(dtype: torch.dtype) -> None:
    def several(x):
        return x + 1, x > 0

    jitted = bt.jit(target=gpu.TARGET, dynamic=True)(several)
    program = jitted.lower(torch.ones(6, 40).to(dtype)).compile()
    for shape in ((6, 40), (3, 17), (2, 5)):
        x = (torch.randn(shape) * 9).to(dtype)
        with emulator.thread_order("shuffled", seed=1):
            for ours, theirs in zip(gpu.call(program, (x,)), several(x)):
                assert torch.equal(ours, theirs)


def test_sums_of_floats_in_an_index_keep_their_order() -> None:
    def picked(w, a, b, c):
        return (F.embedding((a + (b + c) - 16777216.0).long(), w),)

    large, one = torch.full((64,), 2.0**24), torch.ones(64)
    args = torch.randn(100, 8), large, one, one
    (found,) = gpu.call(compiled(picked, *args), args)
    assert torch.equal(found, picked(*args)[0])


def test_more_transposes_than_shared_memory_holds() -> None:
    def summed(a, b, c, d, e, f):
        return (a.T + b.T + c.T + d.T + e.T + f.T,)

    args = tuple(torch.randn(40, 50, dtype=torch.float64) for _ in range(6))
    assert rules(summed, *args) == {"Transposed"}
    check(summed, *args, within=1e-12)


def test_long_rows_are_loops() -> None:
    x = torch.randn(200, 100000)
    program = compiled(lambda x: x.sum(-1), x)
    assert "#pragma unroll\n  for (int step" not in program.source()


def put_together(x, y, z):
    """A kernel for each way to choose by place what is read."""
    a, b = x.chunk(2, -1)
    half = y[:, : a.shape[-1]]
    turned = torch.cat([a * half - b, a + b * half], -1)
    whole = torch.cat([x, y * 2, z], -1)
    padded = F.pad(y, (4, 8), value=3.0)
    rows = torch.cat([x[:3], x[2:] + 1])
    twice = torch.cat([torch.cat([x, z], -1), F.pad(z, (0, x.shape[-1]))])
    return turned, whole, padded, rows, twice, torch.roll(y, 3, -1)


def softmax_of_parts(x, y, z):
    return (torch.cat([x, y * 2, z], -1).softmax(-1),)


@pytest.mark.parametrize("widths", [(64, 128, 4), (8, 4, 12), (6, 9, 3), (100, 50, 2), (4, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_what_is_put_together(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        args = tuple(torch.randn(7, width) for width in widths)
        check(put_together, *args)
        check(softmax_of_parts, *args)
        return
    args = tuple(torch.randint(-5, 5, (7, width)).to(dtype) for width in widths)
    with emulator.thread_order("shuffled", seed=3):
        for ours, theirs in zip(gpu.call(compiled(put_together, *args), args), put_together(*args)):
            assert torch.equal(ours, theirs)


def test_parts_that_are_put_together_are_read_as_vectors() -> None:
    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    x, half = torch.randn(256, 128), torch.randn(256, 64)
    program = bt.jit(target=bt.Target("cuda", arch="sm_90"))(rope).lower(x, half, half).compile()
    code = program.source("cuda")
    assert code.count("*(const float4*)(") == 8
    assert not re.search(r"=\s[^;]*\bx\[", code)
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    loads = re.findall(r"LDG\.E\S*", program.source("sass"))
    assert loads
    assert all(load.startswith("LDG.E.128") for load in loads)


def test_what_is_computed_twice_has_a_name() -> None:
    def fn(x, y, low, mask):
        z = torch.exp(x * y)
        return (
            torch.clamp(x * 3 + y, -1, 1) * (x * 3 + y),
            torch.maximum(z, low),
            torch.where(mask, z * z, z),
            F.hardswish(x - y),
        )

    x, y, low = torch.randn(3, 5, 36)
    x[0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])
    args = (x, y, low, low > 0)
    program = compiled(fn, *args)
    code = program.source("cuda")
    assert "if (" not in code.replace("if (thread", "").replace("if (block", "")
    assert max(Counter(re.findall(r"expf\(.*?\)", code)).values()) == 1
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            for ours, theirs in zip(gpu.call(program, args), fn(*args)):
                torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_the_users_values_are_variables() -> None:
    def fn(x, b):
        y = x + b
        z = torch.sigmoid(y) * 2
        z = z * y
        shares = torch.softmax(z, -1)
        return shares - z

    x, b = torch.randn(5, 64), torch.randn(64)
    code = compiled(fn, x, b).source("cuda")
    assert "float y = x_vector[lane] + b_vector[lane];" in code
    assert re.search(r"float z = .*expf\(-y\).* \* 2.0f;", code)
    assert re.search(r"z_part\[.*\] = z \* y;", code)
    check(lambda x, b: (fn(x, b),), x, b)


def test_names_that_mean_several_values_are_left_out() -> None:
    def fn(x, w):
        a, b = x.chunk(2, -1)
        first = a * w
        second = b * w
        return (torch.cat([first, second], -1) + 1,)

    x, w = torch.randn(6, 64), torch.randn(32)
    code = compiled(fn, x, w).source("cuda")
    assert "float first" not in code
    assert "float second" not in code
    check(fn, x, w)


def test_names_tell_the_truth() -> None:
    """A value of elements at other places, or rounded otherwise, is not the user's."""

    def fn(x, w):
        a = x + 1
        first = x[0] * 2
        low = (w + 1).half() * 2
        return a * (x.flip(0) + 1), first + x[1] * 2, low.float() + ((w + 1).bfloat16() * 2).float()

    x, w = torch.randn(8, 32), torch.randn(40)
    code = compiled(fn, x, w).source("cuda")
    assert "float a = x_vector[lane] + 1.0f;" in code
    assert "a * (x_other_vector[lane] + 1.0f)" in code
    assert "float first" not in code
    for ours, theirs in zip(gpu.call(compiled(fn, x, w), (x, w)), fn(x, w)):
        torch.testing.assert_close(ours, theirs)


def test_names_of_parameters_are_whole() -> None:
    def fn(x, clip_value: float, old_local):
        exp_value = torch.exp(x) * old_local
        return (exp_value * clip_value,)

    x, other = torch.randn(5, 64), torch.rand(64)
    program = compiled(fn, x, 0.5, other)
    code = program.source("cuda")
    assert "float exp_value = expf(x_vector[lane]) * old_local_vector[lane];" in code
    assert re.search(r"double clip_value[,)]", code)
    (found,) = gpu.call(program, (x, 0.5, other))
    torch.testing.assert_close(found, fn(x, 0.5, other)[0])


@pytest.mark.parametrize("flips", [False, True])
def test_values_named_as_words_of_cuda(flips: bool) -> None:
    def fn(x, old, chosen):
        new = x * old
        half = torch.exp(new) + new
        expf = torch.exp(half * 1e-3) + half
        thread = expf * 2
        thread_index = thread * old
        block = torch.cat([x[..., 3:] + 1, chosen[..., :3]], -1)
        return (block + thread_index * thread + (x.flip(-1) if flips else x),)

    check(fn, *(torch.randn(4, 33) for _ in range(3)))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.int64], ids=str
)
def test_narrow_results_of_wide_parts(dtype: torch.dtype) -> None:
    def fn(x, y):
        both = torch.cat([x, y], -1)
        inside = torch.where(torch.arange(64) < 32, x, y)
        return torch.cat([x > 1, y > 0], -1), both.to(torch.int8), inside.half(), both > 0

    args = tuple(torch.randint(-3, 4, (5, 64)).to(dtype) for _ in range(2))
    for ours, theirs in zip(gpu.call(compiled(fn, *args), args), fn(*args)):
        assert torch.equal(ours, theirs)


def test_many_places_are_asked_for_at_each_element() -> None:
    def fn(x):
        product = x
        for k in range(1, 13):
            product = product * torch.cat([x[:, 4 * k :], x[:, : 4 * k]], -1)
        return (product,)

    x = torch.rand(6, 128) + 0.5
    assert len(compiled(fn, x).source("cuda")) < 8000
    check(fn, x, within=1e-4)


def test_values_under_the_names_of_others() -> None:
    def fn(x, lane, thread):
        x = x * lane
        sum = x + thread
        x = x - sum
        block = torch.relu(x) * sum
        return (block + sum * block,)

    args = tuple(torch.randn(40) for _ in range(3))
    check(fn, *args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_several_blocks_read_is_loaded_once(dtype: torch.dtype) -> None:
    def fn(x, w):
        s = x * 2
        y = torch.clamp(s, -1, 1)
        return y * s, y + w, x - y

    for length in (64, 37):
        x, w = torch.randn(3, length).to(dtype), torch.randn(length).to(dtype)
        program = compiled(fn, x, w)
        if length == 64:
            assert len(re.findall(r"\*\)\(x \+", program.source("cuda"))) == 1
        with emulator.thread_order("shuffled", seed=5):
            for ours, theirs in zip(gpu.call(program, (x, w)), fn(x, w)):
                torch.testing.assert_close(ours, theirs)


def test_branches_that_keep_from_reading_stay() -> None:
    def fn(x, y):
        return (torch.where(x > 0, F.pad(y, (1, 2)), x), torch.roll(y, 1, -1) * x[:, :9])

    x, y = torch.randn(4, 12), torch.randn(4, 9)
    code = compiled(fn, x, y).source("cuda")
    assert re.search(r"chosen\w* = y\[", code)
    assert "condval" not in code
    check(fn, x, y)


def test_names_that_cuda_has() -> None:
    def export(volatile, explicit, nullptr, linux, NAN, M_PI):
        mutable = volatile + explicit * nullptr - linux
        return mutable, mutable * NAN + M_PI

    args = tuple(torch.randn(9) for _ in range(6))
    check(export, *args)


def test_a_column_that_reads_others() -> None:
    @T.prim_func(s_tir=True, private=True)
    def mirrored(
        x: T.Buffer((T.int64(40), T.int64(8)), "float32"),
        s: T.Buffer((T.int64(8),), "float32"),
        z: T.Buffer((T.int64(8),), "float32"),
    ):
        for k, i in T.grid(T.int64(8), T.int64(40)):
            with T.sblock("s"):
                vk, vi = T.axis.remap("SR", [k, i])
                with T.init():
                    s[vk] = T.float32(0)
                s[vk] = s[vk] + x[vi, vk]
        for k in range(T.int64(8)):
            with T.sblock("z"):
                vk = T.axis.spatial(T.int64(8), k)
                z[vk] = s[vk] + s[T.int64(7) - vk]

    def called(x):
        return mirrored(x)

    x = torch.randn(40, 8)
    found = gpu.call(compiled(called, x), (x,))
    torch.testing.assert_close(found[1], x.sum(0) + x.sum(0).flip(0))


def test_loads_behind_a_condition_stay_there() -> None:
    @T.prim_func(s_tir=True, private=True)
    def ahead(x: T.Buffer((T.int64(4096),), "float32"), y: T.Buffer((T.int64(4096),), "float32")):
        for i in range(T.int64(4096)):
            with T.sblock("y"):
                vi = T.axis.spatial(T.int64(4096), i)
                y[vi] = T.if_then_else(
                    vi < T.int64(4092) and x[vi + T.int64(4)] > T.float32(0), x[vi], T.float32(-1)
                )

    def called(x):
        return ahead(x)

    x = torch.randn(4096)
    after = torch.cat([x[4:], torch.full((4,), -1.0)])
    assert torch.equal(gpu.call(compiled(called, x), (x,)), torch.where(after > 0, x, -1.0))


def test_vectors_stay_beside_a_product_of_integers() -> None:
    def product_and_quotient(a, b, x, y):
        return a @ b, x / y

    a, b = torch.randint(-9, 9, (40, 33)), torch.randint(-9, 9, (33, 50))
    x, y = torch.randn(7, 1003).half(), torch.rand(1003).half() + 1
    own = compiled(product_and_quotient, a, b, x, y)
    assert "*(uint4*)x_vector = *(const uint4*)(x + " in own.source()
    product, quotient = gpu.call(own, (a, b, x, y))
    assert torch.equal(product, a @ b)
    torch.testing.assert_close(quotient, x / y)


def scaled(x, scale: float):
    return x * scale


def leaky(x, slope: float, eps: float):
    return torch.where(x > 0, x, x * slope) / (x + eps)


TURNED = (
    torch.randn(70, 33).t(),
    torch.randn(4, 3, 9, 7).contiguous(memory_format=torch.channels_last),
    torch.randn(2, 8, 17, 32).transpose(1, 2),
)


@pytest.mark.parametrize("x", TURNED, ids=lambda x: str(tuple(x.shape)))
@pytest.mark.parametrize("fn", [scaled, leaky])
def test_numbers_with_tensors_that_lie_otherwise(fn, x) -> None:
    args = (x, 0.5) if fn is scaled else (x, 0.5, 4.0)
    assert rules(fn, *args) == {"Elementwise"}
    program = compiled(fn, *args)
    assert len(program.launches) == 1
    check(fn, *args, program=program)


def rotated(q, k, cos, sin):
    def half(x):
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def quotients(x):
    return (x * 3 + x) // 7 % 13, (x * 3) // 7, (x + 5) % 7, (x - 3) // 2, (x + x) % 8


def quotients_of_two(x, y):
    cut = torch.div(x, y, rounding_mode="trunc")
    return x // y, x % y, torch.fmod(x, y), cut, torch.remainder(7, y), (x * 2) % y, (x + 1) // y


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_quotients_by_integers_fuse(dtype: torch.dtype, dynamic: bool) -> None:
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (1003,), dtype=dtype)
    y = torch.randint(-20, 20, (1003,)).to(dtype)
    y[y == 0] = 3
    program = bt.jit(gpu.TARGET, dynamic=dynamic)(quotients_of_two).lower(x, y).compile()
    assert len(program.launches) == 1
    assert not program.fallbacks
    for found, expected in zip(gpu.call(program, (x, y)), quotients_of_two(x, y)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_quotients_of_what_may_be_negative(dtype: torch.dtype) -> None:
    x = (torch.randn(40, 6) * 100).to(dtype)
    program = compiled(quotients, x)
    torch.testing.assert_close(gpu.call(program, (x,)), quotients(x), rtol=0, atol=0)


def test_axes_of_one_place_are_no_copies() -> None:
    q, cos = torch.randn(2, 3, 9, 32), torch.randn(2, 9, 32)
    args = q, torch.randn(2, 3, 9, 32), cos, torch.randn(2, 9, 32)
    assert len(compiled(rotated, *args).launches) == 1  # which is called twice
    check(rotated, *args)


def test_the_header_tells_of_numbers() -> None:
    source = compiled(leaky, torch.randn(70, 33), 0.5, 4.0).source("cuda")
    assert "leaky: float32[70, 33], slope: float64, eps: float64" in source


def test_constants_of_64_bits_are_written_as_people_do() -> None:
    def constants(x):
        return x * 1e-20 + 1 / 3 - 2.5e-300 * x

    x = torch.tensor([0.5, -1 / 3, 1e30], dtype=torch.float64)
    program = compiled(constants, x)
    assert "* 1e-20 + 0.3333333333333333 - 2.5e-300 *" in program.source("cuda")
    torch.testing.assert_close(gpu.call(program, (x,)), constants(x), rtol=1e-15, atol=0)
