"""What NVIDIA's compiler makes of kernels: loads on their way together, room for threads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import babytriton as bt
from babytriton.runtime import cuda
from babytriton.stages import Compiled
from tests.conformance import gpu
from tests.emulator import emulator

TARGET = bt.Target("cuda", arch="sm_90")

needs_compiler = pytest.mark.skipif(
    not cuda.has_compiler(), reason="no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc"
)
needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def rms_norm(x, w):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * w).to(x.dtype)


def layer_norm(x, w):
    return F.layer_norm(x, x.shape[-1:], w)


def softmax(x, w):
    return torch.softmax(x * w, -1)


def of_row_alone(x, w):
    return torch.softmax(x, -1)


def row_sums(x, w):
    return x.sum(-1)


def two_norms(x, w):
    return layer_norm(x, w), F.rms_norm(x, x.shape[-1:], w)


def gated_norm(x, w):
    y = F.rms_norm(x, x.shape[-1:], w)
    return F.silu(y) * y, torch.tanh(y + w)


def gelu(x, w):
    return F.gelu(x + w)


def quick_gelu(x, w):
    y = x + w
    return torch.sigmoid(1.702 * y) * y


def swiglu(x, w):
    return F.silu(x) * w


def compiled(fn: Callable, dtype: torch.dtype, rows: int, columns: int) -> Compiled:
    shapes = (rows, columns), (columns,)
    given = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    return bt.jit(target=TARGET)(fn).lower(*given).compile()


def positions(sass: str, instruction: str) -> list[int]:
    """The places of the instructions of a name among all of a kernel."""
    lines = [line for line in sass.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/", line)]
    return [n for n, line in enumerate(lines) if instruction in line]


@pytest.mark.parametrize("length", [1003, 1000, 967, 70, 63, 129])
@pytest.mark.parametrize("fn", [rms_norm, layer_norm, softmax])
def test_only_the_last_step_of_a_row_is_tested(fn, length) -> None:
    source = compiled(fn, torch.float32, 4096, length).source("cuda")
    loops = re.findall(r"for \(int step.*?\n  \}", source, re.DOTALL)
    if length in (1003, 967):  # which are read number by number
        assert len(loops) >= 2
    assert not any("if (" in loop for loop in loops)


@needs_gpu
@pytest.mark.parametrize("length", [1003, 1000, 967, 70, 63, 129, 2050, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("fn", [rms_norm, layer_norm, softmax])
def test_rows_of_any_length(fn, dtype, length) -> None:
    x, w = torch.randn(5, length).to(dtype), torch.rand(length).to(dtype)
    found = gpu.call(bt.jit(target=gpu.TARGET)(fn).lower(x, w).compile(), (x, w))
    exact = fn(x.double(), w.double()) if fn is not rms_norm else rms_norm(x.float(), w.float())
    within = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact.double(), rtol=within, atol=4 * within)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_loads_of_a_row_are_on_their_way_together(dtype) -> None:
    program = compiled(rms_norm, dtype, 4096, 1003)
    (launch,) = program.launches
    assert launch.registers is not None
    assert launch.registers <= 32  # with more, blocks do not fill a multiprocessor
    loads = positions(program.source("sass"), "LDG")
    assert len(loads) >= 16  # of x and of w
    assert loads[6] - loads[0] <= 10  # nothing but loads in between


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", [gelu, quick_gelu, swiglu])
def test_functions_leave_room_for_all_threads(fn, dtype) -> None:
    (launch,) = compiled(fn, dtype, 16384, 4096).launches
    assert launch.registers is not None
    assert launch.registers <= 32
    assert launch.spilled == 0


@needs_compiler
@pytest.mark.parametrize(("fn", "most"), [(quick_gelu, 14), (swiglu, 11), (gelu, 21)])
def test_halves_take_few_instructions(fn, most) -> None:
    sass = compiled(fn, torch.bfloat16, 16384, 4096).source("sass")
    count = positions(sass, "EXIT")[-1]
    assert count <= most * 8 + 16  # for each number of a thread, and to find these


@pytest.mark.parametrize(("fn", "barriers"), [(rms_norm, 1), (layer_norm, 2), (softmax, 2)])
@pytest.mark.parametrize("length", [1003, 2048, 4096])
def test_each_reduction_of_a_row_waits_once(fn, barriers, length) -> None:
    source = compiled(fn, torch.float32, 64, length).source("cuda")
    assert source.count("__syncthreads();") == barriers


@pytest.mark.parametrize(
    ("fn", "length", "block"),
    [
        *((rms_norm, 1024, (32, 8)), (layer_norm, 1024, (32, 8)), (of_row_alone, 1024, (64,))),
        *((rms_norm, 1003, (128,)), (of_row_alone, 1003, (128,)), (rms_norm, 2048, (128,))),
        *((row_sums, 1024, (128,)), (row_sums, 4096, (512,)), (row_sums, 1003, (128,))),
    ],
)
def test_threads_of_a_row(fn, length: int, block: tuple[int, ...]) -> None:
    """A warp each where rows of a block share weights; more where nothing is kept of a row."""
    (launch,) = compiled(fn, torch.float32, 4096, length).launches
    assert launch.block == block
    (few,) = compiled(fn, torch.float32, 64, length).launches
    assert few.block == ((64,) if block == (32, 8) else block)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [768, 1000, 1024])
@pytest.mark.parametrize(("fn", "is_of_warps"), [(rms_norm, True), (gated_norm, False)])
def test_rows_of_a_warp_leave_registers(fn, is_of_warps: bool, length: int, dtype) -> None:
    (launch,) = compiled(fn, dtype, 4096, length).launches
    assert launch.block == ((32, 8) if is_of_warps else (64,))
    assert launch.registers is not None
    assert launch.registers <= 64
    assert launch.spilled == 0


@needs_compiler
@pytest.mark.parametrize("length", [257, 333, 777])
def test_threads_of_rows_of_wide_numbers(length: int) -> None:
    """No more than have two numbers each."""

    def extremes(x, w):
        p, q = (x * w).amax(-1, keepdim=True), (x + w).amin(-1, keepdim=True)
        return x / p, x / q, (x / p + x / q) * w

    (launch,) = compiled(extremes, torch.float64, 4096, length).launches
    assert math.prod(launch.block) <= length
    assert launch.spilled == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_norms_of_the_same_rows_are_one_kernel(dtype) -> None:
    assert len(compiled(two_norms, dtype, 4096, 1024).launches) == 1


@pytest.mark.parametrize(("rows", "vectors"), [(16384, 2), (256, 2), (255, 1), (1, 1)])
def test_vectors_of_a_thread(rows: int, vectors: int) -> None:
    def masked(x, w):
        return (x & 7) | (w ^ 1)

    shapes = (rows, 4096), (4096,)
    given = (torch.empty(shape, dtype=torch.int32, device="meta") for shape in shapes)
    (launch,) = bt.jit(target=TARGET)(masked).lower(*given).compile().launches
    assert launch.grid == (rows * 4096 // (128 * vectors * 4),)


@pytest.mark.parametrize("fn", [gelu, swiglu])
def test_threads_that_compute_functions_have_a_vector(fn) -> None:
    (launch,) = compiled(fn, torch.float32, 16384, 4096).launches
    assert (launch.grid, launch.block) == ((16384 * 4096 // (128 * 4),), (128,))


def of_a_product(x, y, w):
    t = x * y
    return (t + w).argmax(-1), t * w.sum(-1, keepdim=True)


def is_largest(x, y, w):
    z = x * y + w
    return z == z.amax(-1, keepdim=True)


@pytest.mark.parametrize("fn", [of_a_product, is_largest])
@pytest.mark.parametrize("shape", [(8, 100000), (2000, 70000), (2000, 700)])
def test_passes_that_look_for_a_number_round_as_those_that_found_it(fn, shape) -> None:
    given = [torch.empty(*shape, device="meta") for _ in range(3)]
    compiled = bt.jit(bt.Target("cuda", "sm_90"))(fn).lower(*given).compile()
    assert not re.search(r"\bFFMA\b", compiled.source("sass"))
    plain = bt.jit(bt.Target("cuda", "sm_90"))(lambda x, y, w: (x * y + w).amax(-1))
    assert "__fmul_rn" not in plain.lower(*given).compile().source()
