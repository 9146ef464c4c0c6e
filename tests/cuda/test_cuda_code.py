"""CUDA C++ of the user's inside compiled functions: ``bt.cuda_function`` and ``bt.cuda_kernel``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm_ffi

import babytriton as bt
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

squareplus = bt.cuda_function(
    """
__device__ float root(float x) { return sqrtf(x); }
__device__ float squareplus(float x, float b) { return 0.5f * (x + root(x * x + b)); }
""",
    name="squareplus",
    cpu=lambda x, b: 0.5 * (x + torch.sqrt(x * x + b)),
)

reversed_rows = bt.cuda_kernel(
    """
extern "C" __global__ void reversed_rows(const float* x, int columns, float scale, float* out) {
    __shared__ float row[64];
    for (int j = threadIdx.x; j < columns; j += blockDim.x)
        row[j] = x[blockIdx.x * columns + j] * scale;
    __syncthreads();
    for (int j = threadIdx.x; j < columns; j += blockDim.x)
        out[blockIdx.x * columns + j] = row[columns - 1 - j];
}
""",
    name="reversed_rows",
    grid=lambda x, columns, scale: x.shape[0],
    block=32,
    cpu=lambda x, columns, scale: x.flip(-1) * scale,
)

divided = bt.cuda_kernel(
    """
__global__ void __launch_bounds__(64) divided(const int* x, const int* y, int* q, int* r) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < 100) { q[i] = x[i] / y[i]; r[i] = x[i] % y[i]; }
}
""",
    name="divided",
    grid=(2,),
    block=(64, 1),
    cpu=lambda x, y: (torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)),
    out=lambda x, y: (torch.empty_like(x), torch.empty_like(x)),
)


def activated(x, w):
    y = squareplus(x * w, 4.0)
    return torch.tanh(y) + squareplus(x, w)


def turned(x):
    y = x + 1
    return reversed_rows(y, x.shape[1], 2.0) * x


def both(x, y):
    q, r = divided(x, y)
    return q * y + r, r


def compiled(fn, *args) -> Any:
    return bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()


@needs_gpu
@pytest.mark.parametrize("shape", [(8, 64), (5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_function_of_elements_fuses(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, w = torch.randn(shape).to(dtype), torch.rand(shape[1]).to(dtype) + 1
    program = compiled(activated, x, w)
    assert len(program.kernels) == 1
    assert program.fallbacks == ()
    within = 1e-2 if dtype == torch.float16 else 1e-5
    exact = activated(x.double(), w.double())
    torch.testing.assert_close(gpu.call(program, (x, w)).double(), exact, rtol=within, atol=within)
    assert "root(float x)" in program.source(full=True)
    assert "squareplus(" in program.source()


@needs_gpu
def test_a_kernel_is_launched_as_it_says() -> None:
    x = torch.randn(6, 50)
    program = compiled(turned, x)
    assert program.fallbacks == ()
    for order in emulator.ORDERS:
        with emulator.thread_order(order, lockstep=False):
            torch.testing.assert_close(gpu.call(program, (x,)), turned(x))
    (launch,) = [one for one in program.launches if one.function.startswith("reversed_rows")]
    assert (launch.grid, launch.block) == ((6,), (32,))


@needs_gpu
def test_several_results() -> None:
    x, y = torch.arange(100, dtype=torch.int32) - 50, torch.arange(100, dtype=torch.int32) % 7 + 1
    found = gpu.call(compiled(both, x, y), (x, y))
    for ours, theirs in zip(found, both(x, y)):
        assert torch.equal(ours, theirs)


def test_on_the_cpu() -> None:
    x, w = torch.randn(6, 50), torch.rand(50) + 1
    torch.testing.assert_close(bt.jit("cpu")(activated)(x, w), activated(x, w))
    torch.testing.assert_close(bt.jit("cpu")(turned)(x), turned(x))
    torch.testing.assert_close(squareplus(x, 1.0), 0.5 * (x + torch.sqrt(x * x + 1)))


@needs_gpu
def test_a_name_keeps_its_code() -> None:
    first, second, third = (
        bt.cuda_function(
            f"__device__ float shifted(float x) {{ return x + {n}.0f; }}",
            name="shifted",
            cpu=lambda x, n=n: x + n,
        )
        for n in (1, 2, 3)
    )

    def all_three(x):
        return first(x) * 100 + second(x) * 10 + third(x)

    x = torch.zeros(9)
    assert torch.equal(gpu.call(compiled(all_three, x), (x,)), torch.full((9,), 123.0))


@pytest.mark.parametrize(
    ("grid", "block", "why"),
    [
        ((1, 70000), 32, "its grid would be"),
        (1, 2000, "its block would be"),
        (1, (32, 64), "at most 1024 threads"),
        (1, (4, 4, 65), "its block would be"),
        (lambda x: (), 32, "one to three sizes"),
    ],
)
def test_what_no_gpu_launches_is_refused(grid: Any, block: Any, why: str) -> None:
    kernel = bt.cuda_kernel(
        "__global__ void same(const float* x, float* out) {}",
        name="same",
        grid=grid,
        block=block,
        cpu=lambda x: x.clone(),
    )
    with pytest.raises(bt.CompileError, match=why):
        compiled(lambda x: kernel(x), torch.randn(8))


@needs_gpu
def test_nothing_is_launched_for_no_elements() -> None:
    x = torch.randn(0, 7)
    found = gpu.call(compiled(lambda x: reversed_rows(x, 7, 2.0) + 1, x), (x,))
    assert found.shape == (0, 7)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="BT208"):
        bt.cuda_function("__device__ float f(float x);", name="f", cpu=abs)
    with pytest.raises(ValueError, match="BT208"):
        bt.cuda_kernel("__device__ void f() {}", name="f", grid=1, block=1, cpu=abs)
    with pytest.raises(ValueError, match="name must be that of a function"):
        bt.cuda_function("", name="f(", cpu=abs)
    with pytest.raises(TypeError, match="cpu must be a function"):
        bt.cuda_function("", name="f", cpu=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a text"):
        bt.cuda_function(3, name="f", cpu=abs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="out must be a function"):
        bt.cuda_kernel("", name="f", grid=1, block=1, cpu=abs, out=3)  # type: ignore[arg-type]


@needs_gpu
def test_names_that_end_as_those_of_kernels() -> None:
    kernel = bt.cuda_kernel(
        """
extern "C" __global__ void scale_kernel(const float* x, float* out) {
    out[threadIdx.x] = x[threadIdx.x] * 3.0f;
}
""",
        name="scale_kernel",
        grid=1,
        block=64,
        cpu=lambda x: x * 3,
    )

    def scale(x):
        return kernel(x)

    x = torch.randn(64)
    assert torch.equal(gpu.call(compiled(scale, x), (x,)), x * 3)


def test_what_a_compiler_says_of_the_users_code_is_passed_on() -> None:
    """Where a GPU's machine code is made while a function is compiled."""
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    if emulator.available_gpu() is None:
        pytest.skip(emulator.missing() or "no GPU")
    misspelt = bt.cuda_function(
        "__device__ float twice(float x) { return x + nope; }",
        name="twice",
        cpu=lambda x: x * 2,
    )
    name = "tvm_callback_cuda_compile"
    before = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(
        name, lambda source, *_: cuda.cubin(source, "sm_80"), override=True
    )
    try:
        with pytest.raises(RuntimeError, match=r'BT204(.|\n)*identifier "nope" is undefined'):
            bt.jit(target=gpu.TARGET)(lambda x: misspelt(x) + 1).lower(torch.ones(4)).compile()
    finally:
        tvm_ffi.register_global_func(name, before, override=True)


# ---------------------------------------------------------------- gradients


def gradient_of_squareplus(grad, result, x, b):
    root = torch.sqrt(x * x + b)
    return grad * 0.5 * (1 + x / root), grad * 0.25 / root


with_rule = bt.cuda_function(
    "__device__ float plus(float x, float b) { return 0.5f * (x + sqrtf(x * x + b)); }",
    name="plus",
    cpu=lambda x, b: 0.5 * (x + torch.sqrt(x * x + b)),
    gradient=gradient_of_squareplus,
)
doubled_rows = bt.cuda_kernel(
    """
__global__ void doubled_rows(const float* x, float* out) {
    out[blockIdx.x * 8 + threadIdx.x] = 2 * x[blockIdx.x * 8 + threadIdx.x];
}
""",
    name="doubled_rows",
    grid=lambda x: x.shape[0],
    block=8,
    cpu=lambda x: x * 2,
    gradient=lambda grad, result, x: doubled_rows(grad),
)


def by_torch(x, w):
    return torch.tanh(squareplus(x, w) * reversed_rows(x, 8, 0.5))


def by_rules(x, w):
    return torch.tanh(with_rule(x, w) * doubled_rows(x * x))


@pytest.mark.parametrize("fn", [by_torch, by_rules])
def test_gradients_on_the_cpu(fn) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, requires_grad=True)
    w = torch.rand(4, 8).add(0.5).requires_grad_()
    jitted = bt.jit("cpu")(fn)
    found = torch.autograd.grad(jitted(x, w).square().sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(fn(x, w).square().sum(), (x, w)))
    names = {fallback.name for fallback in jitted.lower(x, w).compile().backward.fallbacks}
    assert ("gradient_of_squareplus" in names) == (fn is by_torch)


@needs_gpu
@pytest.mark.parametrize("fn", [by_torch, by_rules])
def test_gradients_on_a_gpu(fn) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, requires_grad=True)
    w = torch.rand(4, 8).add(0.5).requires_grad_()
    grad = torch.randn(4, 8)
    found = gpu.gradients(compiled(fn, x, w), (x, w), {0: grad})
    expected = torch.autograd.grad(fn(x, w), (x, w), grad)
    torch.testing.assert_close(found, list(expected), rtol=1e-4, atol=1e-5)


@needs_gpu
def test_a_kernel_runs_in_the_gradient_that_calls_it() -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.rand(4, 8)
    assert "doubled_rows" in compiled(by_rules, x, w).backward.source()


def plus_on_cpu(x: torch.Tensor, b: float = 4.0) -> torch.Tensor:
    return 0.5 * (x + torch.sqrt(x * x + b))


rooted = bt.library_op(
    "babytriton_cuda::rooted",
    bt.cuda_function(
        "__device__ float rooted(float x, float b) { return 0.5f * (x + sqrtf(x * x + b)); }",
        name="rooted",
        cpu=plus_on_cpu,
    ),
)


def test_cuda_code_is_an_operator_of_torch() -> None:
    bt.testing.check(rooted, [(torch.randn(4, 6), 3.0), torch.randn(5)], dtypes=())
    cuda = bt.jit(target=gpu.TARGET)(rooted.fn).lower(torch.randn(4, 6), 3.0).compile()
    assert "::rooted(x_vector" in cuda.source()  # the result has the name


def hundredth(source: str, name: str = "f", **sizes: Any) -> Any:
    """A function of elements or a kernel that adds a hundredth."""
    make = bt.cuda_kernel if "__global__" in source else bt.cuda_function
    return make(source, name=name, cpu=lambda x, c=0.01: x + c, **sizes)


ADDS = "double f(double x, double c = 0.5) { return x + c; }"
ADDED = "(const double* x, double c, double* y) { y[threadIdx.x] = x[threadIdx.x] + c; }"
SIZES = {"grid": 1, "block": 8}


@needs_gpu
@pytest.mark.parametrize(
    "own",
    [
        hundredth(f"__device__ {ADDS}"),
        hundredth("template <class T> __device__ T f(T x, T c) { return x + c; }"),
        hundredth("__device__ auto f(double x, double c) -> double { return x + c; }"),
        hundredth(f"// __device__ float f(x) {{}}\n__device__ inline\n{ADDS} // f(2)"),
        hundredth(
            f"__device__ double f(double x, double c);\n__device__ {ADDS.replace(' = 0.5', '')}"
        ),
        hundredth(f"__global__ void f{ADDED}", **SIZES),
        hundredth(f'extern "C" void __global__ __launch_bounds__(8 * (2), 1) f{ADDED}', **SIZES),
        hundredth(
            f"__global__ void f(const double*, double, double*);\n__global__ void f{ADDED}", **SIZES
        ),
        hundredth(
            f"/* __global__ void f(int) {{ */\n__launch_bounds__(64) __global__ void f{ADDED}",
            **SIZES,
        ),
    ],
    ids=lambda own: own.__name__,
)
def test_definitions_and_numbers(own) -> None:
    """Where a function is defined is found, and floats are double where it takes them so."""
    x = torch.zeros(8, dtype=torch.float64)
    for fn in (lambda x: own(x), lambda x: own(x, 0.1), lambda x: own(x, c=0.1)):
        program = compiled(fn, x)
        assert program.fallbacks == ()
        assert torch.equal(gpu.call(program, (x,)), fn(x))


def test_parameters_of_user_kernels_have_their_names() -> None:
    own = hundredth(f"__global__ void __launch_bounds__(64, 3) f{ADDED}", **SIZES)
    source = compiled(lambda a: own(a) * 2, torch.zeros(8, dtype=torch.float64)).source()
    assert "// x: float64[8], y: float64[8]\n" in source
    assert "__launch_bounds__(64, 3) f_kernel(" in source


HELPED = """\
__device__ float root(float x) {{ return {}; }}
__device__ float {}(float x) {{ return root(x); }}"""


@needs_gpu
def test_helpers_of_one_name() -> None:
    source = HELPED.format("x + 1", "first") + "\n" + HELPED.format("", "second").partition("\n")[2]
    first, second = (
        bt.cuda_function(source, name=n, cpu=lambda x: x + 1) for n in ("first", "second")
    )
    third = bt.cuda_function(HELPED.format("x * 2", "third"), name="third", cpu=lambda x: x * 2)
    of_kernel = (
        "__global__ void k(const float* x, float* y) { y[threadIdx.x] = root(x[threadIdx.x]); }"
    )
    fourth = bt.cuda_kernel(
        f"{HELPED.format('x - 3', 'other')}\n{of_kernel}",
        name="k",
        cpu=lambda x: x - 3,
        grid=1,
        block=8,
    )

    def all_four(x):
        return first(x) + 10 * second(x) + 100 * third(x) + 1000 * fourth(x)

    x = torch.arange(8.0)
    assert torch.equal(gpu.call(compiled(all_four, x), (x,)), all_four(x))


@needs_gpu
def test_edited_functions_are_shown_and_edited_again() -> None:
    own = bt.cuda_function(HELPED.format("x + 1", "first"), name="first", cpu=lambda x: x + 1)
    x = torch.arange(8.0)
    program = compiled(lambda x: own(x) * 2, x)
    for text in (
        program.source().replace("x + 1", "x + 3"),
        "#define ONE 3\n" + program.source().replace("x + 1", "x + ONE"),
        program.source().replace("first(", "renamed(").replace("x + 1", "x + 3"),
    ):
        edited = program.with_source(text)
        assert edited.source() == text
        again = edited.with_source(edited.source())
        for one in (edited, again, edited.with_source(edited.source(full=True))):
            assert torch.equal(gpu.call(one, (x,)), (x + 3) * 2)


@pytest.mark.parametrize(
    ("before", "body"),
    [("", "extern __shared__ float s[];"), ("__cluster_dims__(2, 1, 1) ", "")],
)
def test_launches_that_are_not_made(before: str, body: str) -> None:
    source = f"__global__ void {before}f(const float* x, float* y) {{ {body} }}"
    with pytest.raises(ValueError, match="BT215"):
        hundredth(source, **SIZES)


@pytest.mark.parametrize("grid", [2.5, (1.0,), "3", None, lambda x, c: x.numel() / 64])
def test_sizes_are_whole_numbers(grid) -> None:
    own = hundredth("__global__ void f(const float* x, float c, float* y) {}", grid=grid, block=8)
    with pytest.raises(bt.CompileError, match="change `grid`: its sizes are whole numbers"):
        compiled(lambda x: own(x), torch.zeros(8))


def test_blocks_fit_what_a_kernel_is_compiled_for() -> None:
    source = "__global__ void __launch_bounds__(32) f(const float* x, float c, float* y) {}"
    own = hundredth(source, grid=1, block=64)
    with pytest.raises(bt.CompileError, match=r"launch_bounds__\(32\)"):
        compiled(lambda x: own(x), torch.zeros(8))


def test_shared_memory_of_a_users_kernel_is_told() -> None:
    if not cuda.has_compiler():
        pytest.skip("no compiler for CUDA: nvcc, or nvidia-cuda-nvrtc")
    source = "__global__ void f(const float* x, float c, float* y) { __shared__ float s[100];"
    source += (
        " s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[8 - threadIdx.x]; }"
    )
    own = hundredth(source, **SIZES)
    for arch in ("sm_80", "sm_90"):
        target = bt.Target("cuda", arch)
        program = bt.jit(target=target)(lambda x: own(x)).lower(torch.zeros(8)).compile()
        assert [launch.shared for launch in program.launches] == [400]


@needs_gpu
def test_code_of_one_source_is_there_once() -> None:
    source = """
    __device__ float kept[8];
    __global__ void put(const float* x, float* y) { kept[threadIdx.x] = x[threadIdx.x] + 1; }
    __global__ void get(const float* x, float* y) { y[threadIdx.x] = kept[threadIdx.x]; }
    """
    put, get = (
        bt.cuda_kernel(source, name=name, grid=1, block=8, cpu=lambda x, n=n: x + n)
        for n, name in enumerate(("put", "get"))
    )

    def both(x):
        return get(put(x)) * 2

    x = torch.arange(8.0)
    program = compiled(both, x)
    assert program.source().count("float kept[8]") == 1
    assert torch.equal(gpu.call(program, (x,)), (x + 1) * 2)


SCALED = "return x + 2 * y + 3 * z;"


@needs_gpu
@pytest.mark.parametrize(
    "source",
    [
        f"__device__ float f(float x, float y, float z) {{ {SCALED} }}",
        "#define OWN __device__ __forceinline__\n"
        f"OWN float f(float x, float y, float z) {{ {SCALED} }}",
        f"__device__ auto f(float x, float y, float z) -> decltype(x + 1) {{ {SCALED} }}",
        "struct S { float k; __device__ float f(float a) const { return a; } };\n"
        f"__device__ float f(float x, float y, float z) {{ {SCALED} }}",
        "__global__ void f(const float* x) {}\n"
        f"__device__ float f(float x, float y, float z) {{ {SCALED} }}",
    ],
    ids=["plain", "macro", "decltype", "method", "kernel"],
)
def test_arguments_by_name(source: str) -> None:
    own = bt.cuda_function(source, name="f", cpu=lambda x, **k: x + 2 * k["y"] + 3 * k["z"])
    x = torch.arange(8.0)
    program = compiled(lambda x: own(x, z=5.0, y=1.0), x)
    assert torch.equal(gpu.call(program, (x,)), x + 17)
    with pytest.raises(bt.CompileError, match="no parameter is called `w`"):
        compiled(lambda x: own(x, z=5.0, y=1.0, w=2.0), x)


HELPERS = [
    "namespace {{ __device__ float root(float x) {{ return x + {0}; }} }}",
    'extern "C" {{ __device__ float root(float x) {{ return x + {0}; }} }}',
    "struct __align__(8) root {{ float v; __device__ root(float x) : v(x + {0}) {{}}"
    " __device__ operator float() const {{ return v; }} }};",
    "typedef float kept; __device__ kept root(kept x) {{ return x + {0}; }}",
    "#define ADD(x) \\\n  {{ x += {0}; \n"
    "__device__ float root(float x) {{ ADD(x) }} return x; }}\n#undef ADD",
    "__constant__ float w[2] = {{0, {0}}};"
    " __device__ float4 v4(float x) {{ float4 v; v.w = x; return v; }}"
    " __device__ float root(float x) {{ return v4(x).w + w[1]; }}",
    "__device__ float root(float x, const float y = {0}) {{ return x + y; }}",
]


@needs_gpu
@pytest.mark.parametrize("helper", HELPERS, ids=lambda helper: helper.split(" ")[0])
def test_helpers_of_any_kind(helper: str) -> None:
    first, second = (
        bt.cuda_function(
            f"{helper.format(n)}\n__device__ float of_{n}(float x) {{ return root(x); }}",
            name=f"of_{n}",
            cpu=lambda x, n=n: x + n,
        )
        for n in (1, 2)
    )

    def both(x):
        return first(x) + 10 * second(x)

    x = torch.arange(8.0)
    assert torch.equal(gpu.call(compiled(both, x), (x,)), both(x))


@needs_gpu
def test_a_name_with_an_underscore_writes_to_nothing() -> None:
    own = bt.cuda_function(
        "__device__ float tanh_(float x) { return x + 1; }", name="tanh_", cpu=lambda x: x + 1
    )

    def doubled(x):
        return own(x) * 2

    x = torch.arange(8.0)
    for found in (gpu.call(compiled(doubled, x), (x,)), bt.jit("cpu")(doubled)(x)):
        assert torch.equal(found, torch.arange(8.0) * 2 + 2)
    assert torch.equal(x, torch.arange(8.0))
