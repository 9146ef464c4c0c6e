"""Several sources of users' CUDA C++ in one program: their names and macros are their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.ops.cuda_definitions import macros, words
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)


def adding(source: str, name: str, number: float) -> Any:
    """A function of elements that should add a number."""
    return bt.cuda_function(source, name=name, cpu=lambda x: x + number)


def check(fn: Any, *args: Any) -> Any:
    """The values on the emulator, and that NVIDIA's compiler takes the text."""
    program = bt.jit(target=gpu.TARGET)(fn).lower(*args).compile()
    expected = fn(*args)
    torch.testing.assert_close(gpu.call(program, args), expected)
    again = program.with_source(program.source())
    torch.testing.assert_close(gpu.call(again, args), expected)
    if cuda.has_compiler():
        cuda.cubin(program.source(full=True), "sm_80")
    return program


ROOT = "__device__ float {1}(float v) {{ return {2}; }}"

PAIRS = {
    "macro": "#define K {0}\n__device__ float {1}(float v) {{ return v + K; }}",
    "if not defined": "#ifndef K\n#define K {0}\n#endif\n"
    "__device__ float {1}(float v) {{ return v + K; }}",
    "macro with parameters": "#define ADDED(v, \\\n  n) \\\n  ((v) + (n))\n"
    "__device__ float {1}(float v) {{ return ADDED(v, {0}); }}",
    "macro undefined again": "#define K {0}\n__device__ float k() {{ return K; }}\n#undef K\n"
    "__device__ float {1}(float v) {{ return v + k(); }}",
    "guarded": "#ifndef LIB\n#define LIB\n__device__ float root(float v) {{ return v + 1; }}\n"
    "#endif\n__device__ float {1}(float v) {{ return root(v) + {0} - 1; }}",
    "namespace": "namespace a {{ __device__ float h(float v) {{ return v + {0}; }} }}\n"
    "__device__ float {1}(float v) {{ return ::a::h(v); }}",
    "enumerators": "enum Mode {{ NONE, ADDED = {0} }};\n"
    "__device__ float {1}(float v) {{ return v + ADDED; }}",
    "other enumerators": "enum {1}_mode {{ ADDED = {0} }};\n"
    "__device__ float {1}(float v) {{ return v + ADDED; }}",
    "member": "struct P {{ float root; }};\n"
    "__device__ float root(float v) {{ P p; p.root = v; return p.root + {0}; }}\n"
    "__device__ float {1}(float v) {{ return root(v); }}",
    "member of a vector": "__device__ float x(float v) {{ float4 p; p.x = v; return p.x + {0}; }}\n"
    "__device__ float {1}(float v) {{ return x(v); }}",
    "includes": "#include <cuda_fp16.h>\n#if 1\n#include <math_constants.h>\n#endif\n"
    "__device__ float root(float v) {{ return v + {0}; }}\n#include <cuda_fp16.h>\n"
    "__device__ float {1}(float v) {{ return root(v); }}",
    "in C": 'extern "C" __device__ float root(float v);\n'
    'extern "C" __device__ float root(float v) {{ return v + {0}; }}\n'
    'extern "C" {{ __device__ float {1}(float v) {{ return root(v); }} }}',
    "operators": "__device__ float4 operator+(float4 a, float4 b)"
    " {{ a.x += b.x; return a; }}\n"
    "__device__ float {1}(float v) {{ float4 a, b; a.x = v; b.x = {0}; return (a + b).x; }}",
    "overloads": "__device__ float4 max(float4 a, float4 b) {{ a.x = max(a.x, b.x); return a; }}\n"
    "__device__ float {1}(float v)"
    " {{ float4 a; a.x = v + {0}; return max(max(a, a).x, v); }}",
    "function of CUDA's": "__device__ float fmaxf(float a) {{ return a + {0}; }}\n"
    "__device__ float {1}(float v) {{ return fmaxf(v); }}",
    "template": "template <typename T> __device__ T root(T v) {{ return v + {0}; }}\n"
    "__device__ float {1}(float v) {{ return root(v); }}",
    "made by a macro": "#define MAKE(n) __device__ float n(float v) {{ return v + {0}; }}\n"
    "MAKE(root)\n__device__ float {1}(float v) {{ return root(v); }}",
    "alias": "using real = float;\nusing namespace std;\n"
    "__device__ real {1}(real v) {{ return v + {0}; }}",
}


@needs_gpu
@pytest.mark.parametrize("text", PAIRS.values(), ids=list(PAIRS))
def test_two_sources(text: str) -> None:
    first = adding(text.format(1, "first"), "first", 1)
    second = adding(text.format(2, "second"), "second", 2)

    def both(x):
        return first(x) + 10 * second(x) + torch.softmax(x, -1)

    check(both, torch.randn(4, 8))


@needs_gpu
def test_macros_are_not_those_of_kernels() -> None:
    least = adding(
        "#define max(a, b) ((a) > (b) ? (b) : (a))\n#define N 8\n#define lane 3\n"
        "__device__ float least(float v) { return max(v, N) + (v > N ? v - N : 0) + N; }",
        "least",
        8,
    )

    def softened(x, N):
        return torch.softmax(least(x), -1) * N + N.amax(-1, keepdim=True)

    check(softened, torch.randn(4, 64), torch.randn(4, 64))


@needs_gpu
def test_macros_that_were_there_stay() -> None:
    """What a source defines where it is missing may be CUDA's, which kernels use."""
    own = adding(
        "#ifndef uint\n#define uint int\n#endif\n"
        "__device__ float own(float v) { return v + (uint)-1 / 4294967295u; }",
        "own",
        1,
    )

    def counted(x, y):
        return own(x) + 1, y + 1

    if emulator.available_gpu() == "real":
        pytest.skip("torch has no uint32 there")
    x = torch.randn(8)
    program = bt.jit(target=gpu.TARGET)(counted).lower(x, x.to(torch.uint8)).compile()
    found = gpu.call(program, (x, x.to(torch.uint8)))
    torch.testing.assert_close(found[0], x + 2)


@needs_gpu
def test_text_that_needs_no_namespace_has_none() -> None:
    first = adding(ROOT.format(0, "first", "v + 1"), "first", 1)
    second = adding(
        "template <class T> __device__ T helper(T v) { return v; }\n"
        + ROOT.format(0, "second", "helper(v) + 2"),
        "second",
        2,
    )

    def both(x, first_of_all):
        return first(x) + second(first_of_all)

    source = check(both, torch.randn(8), torch.randn(8)).source()
    assert "namespace" not in source
    assert " first(x_vector[lane]) + second(" in source


@needs_gpu
def test_names_of_variables_and_functions_of_ours() -> None:
    y = adding(ROOT.format(0, "y", "v + 1"), "y", 1)
    order = adding(ROOT.format(0, "tanhf", "v + 2"), "tanhf", 2)

    def named(x, y_of_x):
        return y(x) + order(x) + torch.tanh(y_of_x)

    def result(x):
        found = y(x)
        return found * 2, torch.tanh(found)

    check(named, torch.randn(8), torch.randn(8))
    check(lambda x, y_: (y(x), y_), torch.randn(8), torch.randn(8))
    check(result, torch.randn(8))


@needs_gpu
def test_kernels_of_one_name() -> None:
    first, second = (
        bt.cuda_kernel(
            f"namespace a {{ __device__ float h(float v) {{ return v + {n}; }} }}\n"
            'extern "C" __global__ void k(const float* x, float* y)'
            " { y[threadIdx.x] = a::h(x[threadIdx.x]); }",
            name="k",
            grid=1,
            block=8,
            cpu=lambda x, n=n: x + n,
        )
        for n in (1, 2)
    )

    def both(x):
        return first(x) + 10 * second(x)

    check(both, torch.randn(8))


def test_macros_and_words() -> None:
    source = """
#define ONE 1
#  define TWO(a, \\
              b) a + b
// #define NONE
#undef MANY
#define MAKE(name) float name(float value) { return value; }
MAKE(made)
#define DEVICE static __device__
enum class Mode : int { FIRST, SECOND = 2 };
namespace inner { int hidden; }
template <typename T> DEVICE T helper(T parameter) { T variable; return variable; }
"""
    assert [*macros(source)] == ["ONE", "TWO", "MANY", "MAKE", "DEVICE"]
    assert macros(source)["TWO"].is_called
    found = words(source)
    assert {"made", "FIRST", "SECOND", "Mode", "inner", "helper"} <= found
    assert not {"T", "parameter", "variable", "hidden", "ONE", "NONE", "float"} & found
