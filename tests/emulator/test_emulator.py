"""The emulator computes what a GPU computes, and reports what a GPU leaves unsaid."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import (
    ORDERS,
    EmulatorError,
    Kernel,
    Order,
    available_gpu,
    missing,
    thread_order,
)

pytestmark = pytest.mark.skipif(
    available_gpu() != "emulated", reason=missing() or "there is a real GPU"
)


def kernel(parameters: str, body: str, before: str = "") -> Kernel:
    return Kernel(f'{before}\nextern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n')


# ---- Threads -----------------------------------------------------------------------------------

LANES = range(32)
SHUFFLES: dict[str, Callable[[int], int]] = {
    "__shfl_sync(~0u, value, 5)": lambda lane: 5,
    "__shfl_sync(~0u, value, lane + 1, 8)": lambda lane: lane // 8 * 8 + (lane + 1) % 8,
    "__shfl_up_sync(~0u, value, 3)": lambda lane: lane - 3 if lane >= 3 else lane,
    "__shfl_up_sync(~0u, value, 3, 8)": lambda lane: lane - 3 if lane % 8 >= 3 else lane,
    "__shfl_down_sync(~0u, value, 16, 32)": lambda lane: lane + 16 if lane < 16 else lane,
    "__shfl_down_sync(~0u, value, 2, 4)": lambda lane: lane + 2 if lane % 4 < 2 else lane,
    "__shfl_xor_sync(~0u, value, 1)": lambda lane: lane ^ 1,
    "__shfl_xor_sync(~0u, value, 8, 8)": lambda lane: lane ^ 8 if lane & 8 else lane,
}


@pytest.mark.parametrize("call", SHUFFLES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float64], ids=str)
def test_shuffle(call: str, dtype: torch.dtype, order: Order) -> None:
    name = {torch.int32: "int", torch.float16: "half", torch.float64: "double"}[dtype]
    shuffle = kernel(
        f"{name}* x",
        f"int lane = threadIdx.x % 32; {name} value = x[threadIdx.x]; x[threadIdx.x] = {call};",
    )
    x = torch.arange(64).to(dtype)
    sources = [warp * 32 + SHUFFLES[call](lane) for warp in range(2) for lane in LANES]
    expected = x[sources]
    shuffle(x, block=(64, 1, 1))
    assert torch.equal(x, expected)


def test_a_lane_that_takes_no_part_has_no_value(order: Order) -> None:
    shuffle = kernel(
        "float* x",
        "if (threadIdx.x < 8) x[threadIdx.x] = __shfl_sync(0xFF, x[threadIdx.x], 20);",
    )
    x = torch.zeros(32)
    shuffle(x)
    assert x.isnan().tolist() == [lane < 8 for lane in LANES]


def test_votes(order: Order) -> None:
    vote = kernel(
        "int* x",
        """
        int lane = threadIdx.x;
        x[lane * 3] = __ballot_sync(~0u, lane % 3 == 0);
        x[lane * 3 + 1] = __any_sync(~0u, lane == 9) + 2 * __any_sync(~0u, lane == 32);
        x[lane * 3 + 2] = __all_sync(~0u, lane < 32) + 2 * __all_sync(~0u, lane < 31);
        """,
    )
    x = torch.zeros(32, 3, dtype=torch.int32)
    vote(x)
    ballot = sum(1 << lane for lane in LANES if lane % 3 == 0)
    assert x.tolist() == [[ballot, 1, 1]] * 32


def test_active_mask_names_the_lanes_of_a_branch(order: Order) -> None:
    branch = kernel(
        "int* x",
        """
        if (threadIdx.x < 5) x[threadIdx.x] = __activemask();
        else if (threadIdx.x < 20) x[threadIdx.x] = __activemask();
        __syncthreads();
        """,
    )
    x = torch.zeros(32, dtype=torch.int32)
    branch(x)
    assert x.tolist() == [0x1F] * 5 + [0xFFFE0] * 15 + [0] * 12


def test_warp_reduction_in_a_short_block(order: Order) -> None:
    reduction = kernel(
        "float* x",
        """
        float sum = x[threadIdx.x];
        unsigned mask = __activemask();
        for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(mask, sum, step, 16);
        if (threadIdx.x == 0) x[0] = sum;
        """,
    )
    x = torch.arange(16.0)
    reduction(x, block=(16, 1, 1))
    assert x[0] == 120


REVERSE = "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[{n} - threadIdx.x];"


@pytest.mark.parametrize(
    "declare", ["__shared__ alignas(64) int s[256];", "extern __shared__ int s[];"]
)
def test_barrier_and_shared_memory(declare: str, order: Order) -> None:
    reverse = kernel("int* x", declare + REVERSE.format(n=255))
    x = torch.arange(256, dtype=torch.int32)
    reverse(x, block=(256, 1, 1), dynamic_shared=1024 if "extern" in declare else 0)
    assert x.tolist() == list(range(255, -1, -1))


@pytest.mark.parametrize("memory", ["x", "s"])
def test_vectors_begin_at_multiples_of_their_size(memory: str) -> None:
    def put(apart: int) -> Any:
        body = f"""
        __shared__ alignas(16) float s[64];
        *(float4*)({memory} + {apart} * (threadIdx.x + 1)) = make_float4(1, 2, 3, 4);
        x[threadIdx.x] += s[threadIdx.x];
        """
        return kernel("float* x", body)

    put(4)(torch.zeros(64), block=(8, 1, 1))
    with pytest.raises(EmulatorError, match="misaligned address"):
        put(2)(torch.zeros(64), block=(8, 1, 1))


def test_without_the_barrier_every_order_is_wrong() -> None:
    body = "__shared__ int s[64];" + REVERSE.format(n=63).replace("__syncthreads();", "")
    reverse = kernel("int* x", body)
    wrong = []
    for order in ORDERS:
        x = torch.arange(64, dtype=torch.int32)
        with thread_order(order):
            reverse(x, block=(64, 1, 1))
        wrong.append(x.tolist() != list(range(63, -1, -1)))
    assert all(wrong)


def test_the_order_of_threads_and_blocks_is_as_told() -> None:
    trace = kernel("int* x", "x[atomicAdd(x + 6, 1)] = blockIdx.x * blockDim.x + threadIdx.x;")

    def traced(order: Order, seed: int = 0) -> list[int]:
        x = torch.zeros(7, dtype=torch.int32)
        with thread_order(order, seed):
            trace(x, grid=(2, 1, 1), block=(3, 1, 1))
        return x[:6].tolist()

    assert traced("fixed") == [0, 1, 2, 3, 4, 5]
    assert traced("reversed") == [5, 4, 3, 2, 1, 0]
    assert traced("shuffled", 1) == traced("shuffled", 1)
    assert len({tuple(traced("shuffled", seed)) for seed in range(8)}) > 3


def test_three_dimensional_indices() -> None:
    index = kernel(
        "int* x",
        """
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        x[block * 24 + thread] = block * 24 + thread;
        """,
    )
    x = torch.zeros(24 * 30, dtype=torch.int32)
    index(x, grid=(2, 3, 5), block=(4, 3, 2))
    assert torch.equal(x, torch.arange(720, dtype=torch.int32))


def test_atomics(order: Order) -> None:
    atomics = kernel(
        "float* f, int* i",
        """
        atomicAdd(f, 1.5f);
        atomicAdd(i, 2);
        atomicMax(i + 1, int(threadIdx.x));
        atomicMin(i + 2, -int(threadIdx.x));
        atomicOr(i + 3, 1 << (threadIdx.x % 8));
        int seen = i[4];
        while (atomicCAS(i + 4, seen, seen + 3) != seen) seen = i[4];
        """,
    )
    f, i = torch.zeros(1), torch.zeros(5, dtype=torch.int32)
    atomics(f, i, grid=(4, 1, 1), block=(64, 1, 1))
    assert f.item() == 384
    assert i.tolist() == [512, 63, -63, 255, 768]


# ---- Types -------------------------------------------------------------------------------------

SHORT_FLOATS = [("half", torch.float16), ("nv_bfloat16", torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), SHORT_FLOATS)
def test_short_floats_round_like_torch(name: str, dtype: torch.dtype) -> None:
    arithmetic = kernel(
        f"{name}* x, {name}* y, {name}* out, float* wide",
        f"""
        int i = threadIdx.x;
        out[i] = x[i] * y[i] + x[i] / y[i] - y[i];
        out[i + 256] = hexp(x[i]);
        out[i + 512] = {name}(wide[i]);
        out[i + 768] = {name}(i - 128);
        ((volatile {name}*)out)[i + 1024] = -x[i];
        """,
    )
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 256, generator=generator).to(dtype)
    wide = torch.randn(256, generator=generator) * 1e3
    wide[:3] = torch.tensor([float("nan"), float("inf"), 1e30])
    out = torch.zeros(1280, dtype=dtype)
    arithmetic(x, y, out, wide, block=(256, 1, 1))
    integers = torch.arange(-128, 128).to(dtype)
    expected = torch.cat([x * y + x / y - y, x.exp(), wide.to(dtype), integers, -x])
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_bits() -> None:
    bits = kernel(
        "long* x, float f, double d",
        """
        x[0] = __float_as_int(f);
        x[1] = __int_as_float(__float_as_int(f)) == f;
        x[2] = __double_as_longlong(d);
        x[3] = __longlong_as_double(x[2]) == d;
        x[4] = __half_as_short(__float2half(f));
        x[5] = __bfloat16_as_ushort(__float2bfloat16(f));
        x[6] = __popc(0xF0F0) + 100 * __clz(1) + 10000 * __ffs(8);
        x[7] = __brev(1u) + __umulhi(1u << 31, 6) + __dp4a(0x01FF0203, 0x01010101, 10);
        """,
    )
    x = torch.zeros(8, dtype=torch.int64)
    bits(x, ctypes.c_float(1.5), ctypes.c_double(-2), block=(1, 1, 1))
    halves = [0x3E00, 0x3FC0]
    assert x.tolist() == [0x3FC00000, 1, -(2**62), 1, *halves, 43108, 2**31 + 3 + 15]


def test_max_of_a_nan_is_the_number() -> None:
    """CUDA's max(float, float) is fmaxf: a kernel that must keep a NaN needs another way."""
    largest = kernel("float* x", "x[threadIdx.x] = max(x[threadIdx.x], 1.0f);")
    x = torch.tensor([float("nan"), 2.0])
    largest(x, block=(2, 1, 1))
    assert x.tolist() == [1, 2]


VECTORS = [
    ("float4", torch.float32, 4),
    ("double2", torch.float64, 2),
    ("int2", torch.int32, 2),
    ("longlong2", torch.int64, 2),
    ("short4", torch.int16, 4),
    ("uchar4", torch.uint8, 4),
    ("half2", torch.float16, 2),
    ("nv_bfloat162", torch.bfloat16, 2),
]


@pytest.mark.parametrize(("name", "dtype", "lanes"), VECTORS)
def test_vector_loads(name: str, dtype: torch.dtype, lanes: int) -> None:
    last = ".xyzw"[lanes]
    swap = kernel(
        f"{name}* x",
        f"""
        {name} v = x[threadIdx.x];
        auto first = v.x; v.x = v.{last}; v.{last} = first;
        x[threadIdx.x] = v;
        """,
    )
    x = torch.arange(32 * lanes).to(dtype)
    expected = x.reshape(32, lanes).clone()
    expected[:, [0, -1]] = expected[:, [-1, 0]]
    swap(x)
    assert torch.equal(x, expected.flatten())


TILES = [
    ("half", "float", torch.float16, torch.float32),
    ("half", "half", torch.float16, torch.float16),
    ("nv_bfloat16", "float", torch.bfloat16, torch.float32),
    ("signed char", "int", torch.int8, torch.int32),
]


@pytest.mark.parametrize(("operand", "sum_", "dtype", "out_dtype"), TILES)
@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 8), (8, 32)])
def test_wmma(
    operand: str, sum_: str, dtype: torch.dtype, out_dtype: torch.dtype, m: int, n: int
) -> None:
    multiply = kernel(
        f"{operand}* a, {operand}* b, {sum_}* c",
        f"""
        using namespace nvcuda::wmma;
        fragment<matrix_a, {m}, {n}, 16, {operand}, row_major> left;
        fragment<matrix_b, {m}, {n}, 16, {operand}, col_major> right;
        fragment<accumulator, {m}, {n}, 16, {sum_}> sum;
        fill_fragment(sum, 0.0f);
        for (int k = 0; k < 32; k += 16) {{
          load_matrix_sync(left, a + k, 32);
          load_matrix_sync(right, b + k, 32);
          mma_sync(sum, left, right, sum);
        }}
        store_matrix_sync(c, sum, {n}, mem_row_major);
        """,
        before="#include <mma.h>",
    )
    a, b = torch.randint(-4, 5, (2, 32, 32)).to(dtype)
    c = torch.zeros(m, n, dtype=out_dtype)
    multiply(a[:m].contiguous(), b[:n].contiguous(), c)
    expected = a[:m].double() @ b[:n].double().t()  # exact in every type: small integers
    assert torch.equal(c.double(), expected)


# ---- What no GPU reports -----------------------------------------------------------------------


def test_divergent_barrier() -> None:
    diverge = kernel("int* x", "if (threadIdx.x < 16)\n  __syncthreads();")
    message = r"kernel: divergent barrier: of 64 threads, 16 wait .* on line 4, 48 have returned"
    with pytest.raises(EmulatorError, match=message):
        diverge(torch.zeros(1, dtype=torch.int32), block=(64, 1, 1))


def test_two_barriers_are_not_one() -> None:
    diverge = kernel("int* x", "if (threadIdx.x < 16) __syncthreads();\nelse __syncthreads();")
    with pytest.raises(EmulatorError, match=r"16 wait .* on line 3, 16 wait .* on line 4"):
        diverge(torch.zeros(1, dtype=torch.int32))


def test_a_launch_that_failed_leaves_the_next_alone() -> None:
    diverge = kernel("int* x", "if (threadIdx.x < *x) __syncthreads(); x[1] = 1;")
    with pytest.raises(EmulatorError, match="divergent"):
        diverge(torch.tensor([3, 0], dtype=torch.int32))
    x = torch.tensor([32, 0], dtype=torch.int32)
    diverge(x)
    assert x.tolist() == [32, 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x[10 + threadIdx.x] = 0;", "write past the end of a buffer of 40 bytes"),
        ("x[5000] = 0;", "illegal memory access: at byte 20000 of a buffer of 40 bytes|every"),
        ("x[0] = x[12 + threadIdx.x];", "illegal memory access: at byte 48 of a buffer of 40"),
        ("x[-1] = 0;", "write before a buffer of 40 bytes"),
        ("x[0] = *(int*)(long)x[1];", "illegal memory access: outside every buffer"),
        ("x[0] /= x[1];", "integer division by zero"),
        ("int big[1 << 20]; big[x[1]] = 1; x[0] = big[x[2]];", "exceeds the emulator's stack"),
    ],
)
def test_bad_access(body: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        kernel("int* x", body)(torch.zeros(10, dtype=torch.int32), block=(1, 1, 1))


SHARING = """
extern "C" __global__ void first(float* x) {
  __shared__ float s[%d];
  if (threadIdx.x == 0) { s[0] = x[0]; }
}
extern "C" __global__ void second(float* x) {
  __shared__ float s[%d];
  s[threadIdx.x] = x[0];
}
"""


def test_each_kernel_has_shared_memory_of_its_own() -> None:
    for name in ("first", "second"):
        Kernel(SHARING % (8000, 9000), name)
    for sizes, name in (((13000, 10), "first"), ((10, 13000), "second")):
        other = {"first": "second", "second": "first"}[name]
        Kernel(SHARING % sizes, other)
        with pytest.raises(EmulatorError, match="declares 52000 bytes of static shared memory"):
            Kernel(SHARING % sizes, name)


def test_write_past_dynamic_shared_memory() -> None:
    overrun = kernel("float* x", "extern __shared__ float s[]; s[threadIdx.x + 1] = x[0];")
    with pytest.raises(EmulatorError, match="illegal memory access"):
        overrun(torch.zeros(1), dynamic_shared=128)


@pytest.mark.parametrize("declare", ["__shared__ float s[32];", "extern __shared__ float s[];"])
def test_uninitialized_shared_memory_is_nan(declare: str) -> None:
    """Also in the second block, which on a GPU might find the first one's values."""
    read = kernel("float* x", declare + "x[blockIdx.x] = s[3]; s[3] = 1;")
    x = torch.zeros(2)
    read(x, grid=(2, 1, 1), block=(1, 1, 1), dynamic_shared=128 if "extern" in declare else 0)
    assert x.isnan().all()


@pytest.mark.parametrize(
    ("prefix", "body", "launch", "message"),
    [
        ("", "", {"block": (1025, 1, 1)}, r"illegal block size \(1025, 1, 1\)"),
        ("", "", {"block": (1, 1, 65)}, "illegal block size"),
        ("", "", {"grid": (1, 65536, 1)}, "illegal grid size"),
        ("__launch_bounds__(64) ", "", {"block": (65, 1, 1)}, r"65 threads exceed __launch_bou"),
        ("", "__shared__ int s[12289]; s[0] = *x;", {}, "49156 bytes of static shared memory"),
        ("", "", {"dynamic_shared": 49153}, "49153 bytes of dynamic shared memory"),
    ],
)
def test_illegal_launch(prefix: str, body: str, launch: dict[str, Any], message: str) -> None:
    source = f'extern "C" __global__ void {prefix}kernel(int* x) {{ {body} }}'
    with pytest.raises(EmulatorError, match=message):
        Kernel(source)(torch.zeros(1, dtype=torch.int32), **launch)


def test_more_dynamic_shared_memory_on_request() -> None:
    reach = kernel("float* x", "extern __shared__ float s[]; s[20000] = 2; *x = s[20000];")
    reach.allow_dynamic_shared(100_000)
    x = torch.zeros(1)
    reach(x, block=(1, 1, 1), dynamic_shared=100_000)
    assert x.item() == 2
    with pytest.raises(EmulatorError, match="too much dynamic shared memory"):
        reach.allow_dynamic_shared(232_449)


def test_gxx_error_names_the_line() -> None:
    """CUDA has no hsinh, though TVM calls it."""
    message = r"(?s)kernel.cu:5:6: error: 'hsinh' was not declared.* 5 \| \*x = hsinh\(\*x\);"
    with pytest.raises(EmulatorError, match=message):
        kernel("half* x", "int unused;\n__syncthreads();\n*x = hsinh(*x);")


def test_memory_of_the_host_is_refused() -> None:
    """The device has none of its addresses."""
    x = torch.zeros(4)
    copy = kernel("float* x, const float* y", "x[0] = y[0];")
    with pytest.raises(EmulatorError, match="parameter 1 is no address of the device's memory"):
        copy(x, ctypes.c_void_p(torch.ones(4).data_ptr()))


def test_numbers_pass_by_value() -> None:
    fill = kernel("double* x, long a, float b, bool c", "*x = double(a) + b + c;")
    x = torch.zeros(1, dtype=torch.float64)
    fill(x, ctypes.c_long(2**40), ctypes.c_float(0.5), ctypes.c_bool(True), block=(1, 1, 1))
    assert x.item() == 2**40 + 1.5
