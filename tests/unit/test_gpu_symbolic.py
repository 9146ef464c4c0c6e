"""Kernels for the GPU of sizes that calls tell: by the rules for known ones, and for any sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tvm import tirx

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator
from tests.unit import wrapping
from tests.unit.test_gpu_programs import along_columns, check, columns, losses, turned

pytestmark = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

SHAPES = (
    *((rows, columns) for rows in (1, 7, 40) for columns in (1, 31, 32, 33, 1000, 1024, 4097)),
    *((4096, columns) for columns in (1, 31, 32, 33)),
)

MATRIX = bt.Tensor[("n", "m"), "float32"]


def program(fn: Callable[..., object], *args: object) -> bt.Compiled:
    """For examples, of which sizes of 1 are known and no others, or for specifications."""
    return bt.jit(target=gpu.TARGET, dynamic=True)(fn).lower(*args).compile()


def rules(compiled: bt.Compiled) -> set[str]:
    functions = compiled.scheduled.mod.functions.values()
    kernels = [func for func in functions if isinstance(func, tirx.PrimFunc)]
    return {str(func.attrs["babytriton.rule"]) for func in kernels}


def blocks(compiled: bt.Compiled, **sizes: int) -> list[int]:
    """The thread blocks of each kernel, for a call of some sizes."""
    counts = {"min": min, "max": max, **sizes}
    return [
        math.prod(eval(str(extent), {}, counts) for extent in launch.grid)
        for launch in compiled.launches
    ]


def transposed_first(x):
    return (x.T.contiguous(),)


def turned_and_reduced(x):
    y = x.T * 2
    return y.contiguous(), y.sum(-1), x.sum(0) / x.shape[0]


def along_the_middle(x):
    return x.sum(1), x.amax(1) - 1, x.mean(1, keepdim=True)


def turned_in_layers(x):
    return x.transpose(1, 2).contiguous(), x.permute(2, 1, 0).contiguous() + 1


def running(x):
    y = torch.sigmoid(x)
    return x.cumsum(-1), (1 + y / x.shape[-1]).cumprod(-1), (x > 0).cumsum(-1)


@pytest.fixture(scope="module")
def whole() -> dict[Callable[..., object], bt.Compiled]:
    """A program for each function: one is for all sizes but 1."""
    x = torch.randn(6, 48)
    return {
        **{fn: program(fn, x) for fn in (columns, along_columns, turned_and_reduced)},
        turned: program(turned, x, x.T.contiguous()),
    }


@pytest.mark.parametrize("fn", [columns, turned])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_sizes(fn, shape: tuple[int, int], whole) -> None:
    x = torch.randn(shape)
    args = (x,) if fn is columns else (x, torch.randn(shape[::-1]))
    own = whole[fn] if min(shape) > 1 else program(fn, *args)
    check(fn, *args, program=own)
    if min(shape) > 1:
        assert rules(own) == {"Columns" if fn is columns else "Transposed"}


@pytest.mark.parametrize("fn", [along_columns, turned_and_reduced])
@pytest.mark.parametrize("shape", [(7, 33), (64, 1000), (3000, 16)])
def test_what_goes_with_columns_and_transposes(fn, shape: tuple[int, int], whole) -> None:
    assert rules(whole[fn]) <= {"Columns", "Transposed", "Elementwise", "Rowwise"}
    check(fn, torch.randn(shape), program=whole[fn])


@pytest.mark.parametrize("fn", [along_the_middle, turned_in_layers])
def test_between_other_axes(fn) -> None:
    own = program(fn, torch.randn(3, 4, 5))
    assert rules(own) == {"Columns" if fn is along_the_middle else "Transposed"}
    for shape in ((3, 4, 5), (2, 33, 65), (40, 200, 2), (70, 2, 34)):
        check(fn, torch.randn(shape), program=own)


def test_more_tiles_than_a_grid_takes_along_its_axes() -> None:
    def fn(x):
        return x.transpose(1, 2).contiguous()

    x = torch.randn(65600, 9, 8)
    own = bt.jit(target=gpu.TARGET)(fn).lower(x).compile()
    assert rules(own) == {"Transposed"}
    assert own.launches[0].grid == (65600,)
    assert torch.equal(gpu.call(own, (x,)), fn(x))


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [(("n", 1024), ((3, 1024), (700, 1024))), ((1024, "m"), ((1024, 33), (1024, 700)))],
)
@pytest.mark.parametrize("fn", [columns, transposed_first])
def test_one_size_is_known(fn, shape: tuple[int | str, ...], sizes) -> None:
    own = program(fn, bt.Tensor[shape, "float32"])
    assert rules(own) == {"Columns" if fn is columns else "Transposed"}
    assert ("float4*)(x" in own.source()) == (fn is columns and shape[1] == 1024)
    for size in sizes:
        check(fn, torch.randn(size), program=own)


def test_nothing_is_reduced_to_what_sums_start_from() -> None:
    """Of no rows: processes that share a tensor may have none."""
    own = program(lambda x: (x.sum(0), x.T + 1), torch.randn(6, 48)).executable
    for shape in ((0, 5), (5, 0)):
        total, other = emulator.run(own.vm_executable, own.entry, [torch.randn(shape)])
        assert torch.equal(total, torch.zeros(shape[1]))
        assert other.shape == shape[::-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_add_up_in_float32(dtype: torch.dtype) -> None:
    own = program(lambda x: x.sum(0), torch.randn(6, 48).to(dtype))
    found = gpu.call(own, (torch.ones(4096, 33).to(dtype),))
    assert torch.equal(found, torch.full((33,), 4096.0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.int64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    def both(x):
        return x.T.contiguous(), x.amax(0)

    own = program(both, torch.ones(6, 48).to(dtype))
    x = (torch.randn(70, 130) * 9).to(dtype)
    with emulator.thread_order("shuffled", seed=3):
        for ours, theirs in zip(gpu.call(own, (x,)), both(x)):
            assert torch.equal(ours, theirs)


def test_results_do_not_depend_on_the_order(whole) -> None:
    x, found = torch.randn(3000, 70), []
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            found.append(gpu.call(whole[columns], (x,)))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def test_large_sizes_fill_the_gpu() -> None:
    total = program(lambda x: x.sum(0), MATRIX)
    for n, m in ((4096, 1024), (1 << 20, 8), (1 << 20, 33), (40, 100000)):
        first, second = blocks(total, n=n, m=m)
        assert 500 <= first <= max(1024, m / 32 + 1)
        assert second == -(-m // 32)
    assert blocks(total, n=7, m=40) == [2, 2]
    turned_over = program(transposed_first, MATRIX)
    assert blocks(turned_over, n=4096, m=1024) == [4096]
    (launch,) = turned_over.launches
    assert len(launch.grid) == 1  # along x, where a GPU takes any number


def test_lines_are_read_and_written_as_they_lie() -> None:
    """Threads beside each other have elements beside each other; banks are 33 numbers apart."""
    code = program(transposed_first, MATRIX).source()
    assert re.search(
        r"row = \(int64_t\)tile_row \* 32 \+ thread;.*x\[column \* m \+ row\]", code, re.S
    )
    assert re.search(
        r"column = \(int64_t\)tile_column \* 32 \+ thread;.*\[row \* n \+ column\]",
        code,
        re.S,
    )
    assert "x_tile[thread * 33 + step * 8 + thread_y]" in code
    code = program(lambda x: x.sum(0), MATRIX).source()
    assert "column = (int64_t)block * 32 + thread;" in code
    assert "x[row * m + column]" in code
    assert "int pieces, int turns)" in code


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "fn", [columns, along_columns, turned_and_reduced, turned_in_layers, running]
)
def test_machine_code(arch: str, fn, dtype: torch.dtype) -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    shape = (6, 48, 7) if fn is turned_in_layers else (6, 48)
    jitted = bt.jit(target=bt.Target("cuda", arch=arch), dynamic=True)(fn)
    for launch in jitted.lower(torch.empty(shape, dtype=dtype)).compile().launches:
        assert launch.registers is not None
        assert launch.registers <= 64, launch
        assert launch.spilled == 0, launch


def test_users_names_stay_theirs() -> None:
    def fn(row, column, pieces, turns):
        tile_row = row.T + column.T
        return tile_row * pieces.T, (row * turns).sum(0), tile_row.amax(1)

    args = tuple(torch.randn(6, 48) for _ in range(4))
    own = program(fn, *args)
    check(fn, *(torch.randn(70, 41) for _ in range(4)), program=own)


def sums(x):
    return x.sum(), (x * x).mean(), x.max() + x.min(), torch.logsumexp(x.flatten(), 0), x.var()


@pytest.mark.parametrize("shape", [(2, 3), (7, 33), (300, 1000), (3, 70001)])
def test_whole_tensors(shape: tuple[int, int]) -> None:
    own = program(sums, torch.randn(6, 48))
    assert rules(own) <= {"LongRows", "Elementwise"}
    check(sums, torch.randn(shape), program=own)


def of_a_row(x, w):
    return torch.softmax(x * w, -1), (x * w).sum(-1) / w.sum()


@pytest.mark.parametrize("length", [2, 300, 5000, 70001])
def test_few_rows_may_be_long(length: int) -> None:
    shapes = bt.Tensor[(3, "m"), "float32"], bt.Tensor[("m",), "float32"]
    own = program(of_a_row, *shapes)
    assert rules(own) <= {"LongRows", "Elementwise"}
    check(of_a_row, torch.randn(3, length), torch.rand(length) + 1, program=own)


def test_large_tensors_fill_the_gpu() -> None:
    own = program(lambda x: x.sum(), MATRIX)
    assert blocks(own, n=4096, m=1024) == [1024, 1]
    assert blocks(own, n=2, m=3) == [1, 1]
    heads = re.findall(r"__global__ void [^{]*", own.source())
    assert [re.findall(r"\bint (\w+)", head) for head in heads] == [["pieces", "steps"], ["pieces"]]


def test_reductions_that_need_nothing_of_each_other_share_a_kernel() -> None:
    x, t = torch.randn(50, 7), torch.arange(50) % 7
    own = program(losses, x, t)
    assert rules(own) == {"LongRows", "Rowwise"}
    assert len(own.launches) == 1 + 2  # of rows; their sum and how many there are
    check(losses, torch.randn(3000, 9), torch.arange(3000) % 9, program=own)


SCANNED = ((2, 2), (7, 33), (600, 31), (5, 1024), (3, 5000), (513, 257))


@pytest.mark.parametrize("shape", SCANNED)
def test_running_sums_and_products(shape: tuple[int, int]) -> None:
    own = program(running, torch.randn(6, 48))
    assert rules(own) <= {"Scan", "Elementwise"}
    check(running, torch.randn(shape), within=1e-4, program=own)


@pytest.mark.parametrize("length", [2, 300, 5000, 70001])
def test_running_sums_of_few_rows(length: int) -> None:
    own = program(lambda x: (x.cumsum(-1),), bt.Tensor[(3, "m"), "float32"])
    check(lambda x: (x.cumsum(-1),), torch.randn(3, length), within=1e-4, program=own)
    own = program(lambda x: (x.cumsum(-1),), bt.Tensor[("n", 300), "float32"])
    check(lambda x: (x.cumsum(-1),), torch.randn(length // 300 + 2, 300), within=1e-4, program=own)


def test_running_sums_fill_the_gpu() -> None:
    own = program(lambda x: x.cumsum(-1), MATRIX)
    assert blocks(own, n=2, m=1 << 20) == [512, 512]
    assert blocks(own, n=4096, m=1024) == [4096, 4096]
    assert all(launch.spilled == 0 for launch in own.launches if launch.spilled is not None)


SIZES = (2, 7, 31, 32, 33, 100, 1000, 1024, 1027)


def of_all(x):
    return x.sum(), (x * x).mean(), torch.logsumexp(x.flatten(), 0), x.var()


def of_several_rows(x):
    return x.sum((1, 2)), torch.logsumexp(x, (1, 2)), x.sum(1), x.mean(0)


@pytest.mark.parametrize("shape", [("n",), ("n", 96), ("n", 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_of_a_tensor_is_read_in_vectors(shape: tuple[int | str, ...], dtype) -> None:
    own = program(of_all, bt.Tensor[shape, str(dtype).removeprefix("torch.")])
    vector = "float4" if dtype == torch.float32 else "uint4"
    assert f"({vector}*)x_vector = *(const {vector}*)(x + " in own.source()
    for n in SIZES:
        x = torch.randn(n, *shape[1:]).to(dtype)
        check(of_all, x, within=1e-5 if dtype == torch.float32 else 2e-2, program=own)


@pytest.mark.parametrize("rows", ["m", 3])
def test_rows_and_columns_of_which_all_are_whole_vectors(rows: str | int) -> None:
    own = program(of_several_rows, bt.Tensor[(rows, "n", 8), "float32"])
    assert rules(own) <= {"LongRows", "Rowwise", "Columns", "Elementwise"}
    kernels = own.source().split("__global__")[1:]
    of_x = [kernel for kernel in kernels if re.search(r"\bx\b\[|\bx \+ ", kernel)]
    assert of_x
    assert all("*(const float4*)(x + " in kernel for kernel in of_x)
    assert "longlong4" not in own.source()
    for n in SIZES:
        check(of_several_rows, torch.randn(3, n, 8), within=1e-4, program=own)


def masked(x, mask):
    return torch.softmax(x * 0.125 + mask, -1)


def activated(x, y, w):
    h = torch.sigmoid(x + w) * y
    return h, h.sum(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(masked, (("n", 2, 4, 128), (4, 128))), (activated, (("n", 64), ("n", 64), (64,)))],
)
def test_vectors_are_stored_whole(fn, shapes, dtype: torch.dtype) -> None:
    """NVIDIA's compiler takes them apart, and does not always put them together again."""
    name = str(dtype).removeprefix("torch.")
    own = program(fn, *(bt.Tensor[shape, name] for shape in shapes))
    if cuda.has_compiler():
        assert re.search(r"st\.global\.v4\.(f|u|b)32", own.source("ptx"))
        assert not re.search(r"st\.global\.(f|u|b)32 +\[%rd\d+\+4\]", own.source("ptx"))
    for n in SIZES:
        args = [torch.randn([n if x == "n" else x for x in shape]) for shape in shapes]
        args = [x.to(dtype) for x in args]
        exact = fn(*(x.double() for x in args))
        found = gpu.call(own, tuple(args))
        within = 1e-4 if dtype == torch.float32 else 2e-2
        for ours, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, exact))):
            torch.testing.assert_close(ours.double(), theirs, rtol=within, atol=within * 4)


def pooled(x):
    mean = F.adaptive_avg_pool2d(x, (3, 1))
    return F.max_pool2d(x, 3, 2, 1).relu(), F.avg_pool2d(x, 2) * 2, mean


def test_pooling_of_batches_of_any_size() -> None:
    own = program(pooled, bt.Tensor[("n", 2, 7, 8), "float32"])
    assert own.fallbacks == ()
    of_known_size = bt.jit(target=gpu.TARGET)(pooled).lower(torch.randn(3, 2, 7, 8)).compile()
    assert len(own.launches) == len(of_known_size.launches)
    for n in SIZES[:-3]:
        check(pooled, torch.randn(n, 2, 7, 8), program=own)


def spread(x):
    return (x.var((0, 2, 3)),)


def test_sums_and_squared_distances_of_any_number_share_a_pass() -> None:
    own = program(spread, bt.Tensor[("n", 3, 4, 8), "float32"])
    assert rules(own) == {"LongRows"}
    assert len(own.launches) == 2  # of pieces, and of what they have
    for n in SIZES:
        check(spread, torch.randn(n, 3, 4, 8) + 9, within=1e-4, program=own)


@pytest.mark.parametrize("columns", [7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_elements_that_are_whole_vectors_have_no_rest(columns: int, dtype: torch.dtype) -> None:
    def fn(x, w):
        return (x * w + 1,)

    shapes, name = (("n", columns), (columns,)), str(dtype).removeprefix("torch.")
    own = program(fn, *(bt.Tensor[shape, name] for shape in shapes))
    assert (" rest" in own.source()) == (columns == 7)
    for n in SIZES:
        check(
            fn,
            *(torch.randn(shape).to(dtype) for shape in ((n, columns), (columns,))),
            within=1e-5 if dtype == torch.float32 else 2e-3,
            program=own,
        )


def turned_in_pairs(x):
    return (x.transpose(1, 2) * 2,)


def test_halves_of_any_batch_are_turned_in_words() -> None:
    own = program(turned_in_pairs, bt.Tensor[("n", 66, 100), "float16"])
    assert rules(own) == {"Transposed"}
    assert "*(half2*)(x_tile" in own.source()
    for n in (2, 7, 31):
        check(turned_in_pairs, torch.randn(n, 66, 100).half(), program=own)


@pytest.mark.parametrize("fn", wrapping.FUNCTIONS)
def test_integers_that_wrap(fn: Callable[..., torch.Tensor]) -> None:
    compiled = program(fn, torch.zeros(300))
    for n in (300, 70, 7):
        x = torch.zeros(n)
        assert torch.equal(gpu.call(compiled, (x,)), fn(x))
