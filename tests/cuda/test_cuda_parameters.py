"""What fits the parameters of users' CUDA C++, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import babytriton as bt
from babytriton.ops.cuda_definitions import functions
from babytriton.ops.cuda_parameters import Numbers, cast
from babytriton.runtime import cuda
from tests.conformance import gpu
from tests.emulator import emulator

needs_gpu = pytest.mark.skipif(
    emulator.available_gpu() is None, reason=emulator.missing() or "no GPU"
)

X = torch.arange(8.0)


def element(parameters: str, body: str, cpu: Any, result: str = "float") -> Any:
    source = f"__device__ {result} f({parameters}) {{ return {body}; }}"
    return bt.cuda_function(source, name="f", cpu=cpu)


def kernel(parameters: str, body: str, cpu: Any, **sizes: Any) -> Any:
    source = f"__global__ void k({parameters}) {{ {body} }}"
    return bt.cuda_kernel(source, name="k", cpu=cpu, **{"grid": 1, "block": 8, **sizes})


def compiled(fn: Any, *args: Any, dynamic: bool | None = None) -> Any:
    return bt.jit(target=gpu.TARGET, dynamic=dynamic)(fn).lower(*args).compile()


def check(fn: Any, *args: Any) -> None:
    program = compiled(fn, *args)
    assert program.fallbacks == ()
    torch.testing.assert_close(gpu.call(program, args), fn(*args))
    if cuda.has_compiler():
        cuda.cubin(program.source(full=True), "sm_80")


def refused(match: str, fn: Any, *args: Any) -> None:
    with pytest.raises(bt.CompileError, match=match):
        bt.jit(target=gpu.TARGET)(fn).lower(*args)


@pytest.mark.parametrize(
    ("type", "number", "why"),
    [
        ("int", (1 << 40) + 5, "holds -2147483648 to 2147483647, and not 1099511627781"),
        ("signed char", 300, "holds -128 to 127, and not 300"),
        ("unsigned", -1, "holds 0 to 4294967295, and not -1"),
        ("const unsigned int", -1, "holds 0 to"),
        ("bool", 3, "holds 0 to 1, and not 3"),
        ("uint8_t", 256, "holds 0 to 255"),
        ("std::int16_t", 1 << 15, "holds -32768 to 32767"),
        ("unsigned long", -1, "holds 0"),
        ("int", 1e10, "and not 10000000000.0"),
        ("int", 2.5, "would lose its fraction"),
        ("int", float("inf"), "would lose its fraction"),
        ("float*", 3, "is called with one element at a time"),
        ("float4", 3, "is called with one element at a time"),
    ],
)
def test_numbers_that_do_not_fit(type: str, number: Any, why: str) -> None:
    own = element(f"float x, {type} n", "x", lambda x, n: x + float(n))
    refused(f"`n` is of type {type}.*{why}".replace("*,", r"\*,"), lambda x: own(x, number), X)
    if not type.startswith("float"):
        own = kernel(f"const float* x, {type} n, float* y", "", lambda x, n: x + float(n))
        refused(f"`n` is of type {type}.*{why}", lambda x: own(x, number), X)


@needs_gpu
@pytest.mark.parametrize(
    ("type", "number"),
    [
        ("int", -(1 << 31)),
        ("long long", (1 << 62) + 1),
        ("unsigned long long", (1 << 63) - 1),
        ("signed char", -128),
        ("unsigned short", 65535),
        ("bool", True),
        ("bool", 1),
        ("int", 4.0),
        ("double", 1 << 62),
    ],
)
def test_numbers_that_fit(type: str, number: Any) -> None:
    if number == -(1 << 31):
        own = element(f"float x, {type} n", "n == -2147483647 - 1 ? x : x + 9", lambda x, n: x)
    else:
        text = f"{int(number)}{'ull' if type.startswith('unsigned') else ''}"
        own = element(f"float x, {type} n", f"n == {text} ? x : x + 9", lambda x, n: x)
    check(lambda x: own(x, number), X)


@pytest.mark.parametrize(
    ("type", "dtype", "why"),
    [
        ("long long", torch.float32, "argument 1, of float32, may lose their fractions"),
        ("int", torch.float16, "argument 1, of float16, may lose their fractions"),
        ("int", torch.int64, "argument 1, of int64, may not fit"),
        ("unsigned", torch.int32, "argument 1, of int32, may not fit"),
        ("bool", torch.uint8, "argument 1, of uint8, may not fit"),
        ("char", torch.uint8, "argument 1, of uint8, may not fit"),
    ],
)
def test_elements_that_do_not_fit(type: str, dtype: torch.dtype, why: str) -> None:
    own = element(f"{type} x", "x", lambda x: x + 1, type)
    refused(f"`x` is of type {type}, and the elements of {why}", lambda x: own(x), X.to(dtype))


@needs_gpu
@pytest.mark.parametrize(
    ("type", "dtype"),
    [
        ("long long", torch.int64),
        ("int", torch.int16),
        ("int", torch.bool),
        ("float", torch.float64),
        ("float", torch.int64),
        ("double", torch.float32),
        ("short", torch.uint8),
        ("half", torch.float16),
    ],
)
def test_elements_that_fit(type: str, dtype: torch.dtype) -> None:
    own = element(f"{type} x", "x + 1.0f" if type == "float" else "x", lambda x: x + 0, type)
    if type == "float":
        own = element("float x", "x + 1", lambda x: x + 1)
    x = X.to(dtype)
    program = compiled(lambda x: own(x) if dtype != torch.bool else own(x).bool(), x)
    assert program.fallbacks == ()
    expected = x + 1 if type == "float" else x
    torch.testing.assert_close(gpu.call(program, (x,)), expected)


@needs_gpu
def test_overloads_and_templates_take_what_they_take() -> None:
    source = """
__device__ float f(float x) { return x + 1; }
__device__ int f(int x) { return x + 3; }
__device__ float f(float x, float y) { return x + y; }
"""
    own = bt.cuda_function(source, name="f", cpu=lambda x, *y: x + (*y, 1)[0])
    check(lambda x: own(x) + own(x, 2.0), X)
    whole = bt.cuda_function(source, name="f", cpu=lambda x: x + 3)
    check(lambda x: whole(x), X.int())
    refused("takes 1 parameter, and the call gives 3 arguments", lambda x: own(x, 2.0, 3.0), X)
    of_any = bt.cuda_function(
        "template <class T> __device__ T f(T x, int n) { return x + n; }",
        name="f",
        cpu=lambda x, n: x + n,
    )
    check(lambda x: of_any(x, 2), torch.arange(8))
    in_macro = bt.cuda_function(
        "#define ARGS float x, int n\n__device__ float f(ARGS) { return x + n; }",
        name="f",
        cpu=lambda x, n: x + n,
    )
    check(lambda x: in_macro(x, 2), X)


def test_counts_of_functions() -> None:
    own = element("float x", "x", lambda x, y: x + y)
    refused("takes 1 parameter, and the call gives 2 arguments", lambda x: own(x, x), X)
    own = element("float x, float y", "x", lambda x: x + 1)
    refused("takes 2 parameters, and the call gives 1 argument\n", lambda x: own(x), X)
    own = element("void", "1.0f", lambda x: x + 1)
    refused("takes 0 parameters, and the call gives 1 argument", lambda x: own(x), X)


@needs_gpu
def test_defaults_of_the_source() -> None:
    own = element("float x, float y = 3.0f", "x + y", lambda x, y=3.0: x + y)
    check(lambda x: own(x) + own(x, 1.0), X)
    check(lambda x: element_of_default(x), X)
    declared = bt.cuda_function(
        "__device__ float f(float x, float y = 3.0f);\n"
        "__device__ float f(float x, float y) { return x + y; }",
        name="f",
        cpu=lambda x: x + 3,
    )
    check(lambda x: declared(x), X)


element_of_default = element("float x, float y = 3.0f", "x + y", lambda x: x + 3)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("float* x, int n, float* y", r"`x` is of type float\*, by which argument 1 may be over"),
        ("float x[], int n, float* y", r"`x` is of type float\*, by which argument 1 may be over"),
        ("const float* x, int n, const float* y", r"`y` is of type const float\*, and result 1"),
        ("const double* x, int n, float* y", r"`x` is of type const double\*, and .*of float32"),
        ("const float* x, int n, double* y", r"`y` is of type double\*, and result 1 is of float"),
        ("const float* x, const int* n, float* y", r"`n` is of type const int\*, and argument 2"),
        ("float x, int n, float* y", "`x` is of type float, and argument 1 is a tensor, of float"),
        ("const float* x, float* y", "takes 2 parameters, for 2 arguments and 1 result"),
        ("const float* x, int n, float* y, float* z", "4 parameters, for 2 arguments and 1 resul"),
        ("const float3* x, int n, float* y", r"`x` is of type const float3\*, and .* 8 elements"),
        ("const float*, int, double*", r"parameter 3 is of type double\*"),
    ],
)
def test_parameters_of_kernels_that_do_not_fit(parameters: str, why: str) -> None:
    own = kernel(parameters, "", lambda x, n: x * n)
    refused(why, lambda x: own(x, 2), X)


@needs_gpu
@pytest.mark.parametrize(
    ("type", "dtype", "block"),
    [
        ("char", torch.int8, 8),
        ("signed char", torch.int8, 8),
        ("long", torch.int64, 8),
        ("long long", torch.int64, 8),
        ("long long int", torch.int64, 8),
        ("int64_t", torch.int64, 8),
        ("int32_t", torch.int32, 8),
        ("short", torch.int16, 8),
        ("unsigned char", torch.uint8, 8),
        ("bool", torch.bool, 8),
        ("__half", torch.float16, 8),
        ("half2", torch.float16, 4),
        ("__nv_bfloat16", torch.bfloat16, 8),
        ("float4", torch.float32, 2),
        ("int2", torch.int32, 4),
        ("double", torch.float64, 8),
        ("void", torch.float32, 8),
    ],
)
@pytest.mark.parametrize("form", ["const {0}* __restrict__ x", "{0} const *x"])
def test_parameters_of_kernels_that_fit(
    type: str, dtype: torch.dtype, block: int, form: str
) -> None:
    body = "y[threadIdx.x] = x[threadIdx.x];"
    if type == "void":
        body = "((float*)y)[threadIdx.x] = ((const float*)x)[threadIdx.x];"
    own = kernel(f"{form.format(type)}, {type}* y", body, lambda x: x.clone(), block=block)
    check(lambda x: own(x), X.to(dtype))


@needs_gpu
def test_sizes_of_the_run_time_are_numbers() -> None:
    own = element("float x, int n", "x * n", lambda x, n: x * n)

    def scaled(x):
        return own(x, x.shape[0]) + own(x, 2 * x.shape[0] - 1)

    program = compiled(scaled, X, dynamic=True)
    assert program.fallbacks == ()
    for size in (8, 5, 100):
        x = torch.randn(size)
        torch.testing.assert_close(gpu.call(program, (x,)), scaled(x))
    rows = kernel(
        "const float* x, int n, float* y", "y[threadIdx.x] = x[0] + n;", lambda x, n: x[:8] + n
    )
    fixed = torch.zeros(8)
    program = compiled(lambda x, y: rows(x, y.shape[0]), fixed, torch.randn(5), dynamic=True)
    torch.testing.assert_close(gpu.call(program, (fixed, torch.randn(7))), fixed + 7)


def test_other_arguments_and_results() -> None:
    own = element("float x, float k", "x * k", lambda x, k: x)
    for value in ("a", None, (1, 2)):
        refused("argument 2 is", lambda x, value=value: own(x, value), X)
    of_text = element("float x, float k", "x * k", lambda x, k: x * k)
    refused("argument 2 is 'a'", lambda x: of_text(x, "a"), X)
    refused("argument 2 is None", lambda x: of_text(x, None), X)
    two = element("float x", "x", lambda x: (x, x))
    refused("its `cpu` gives no single tensor", lambda x: two(x)[0], X)
    failing = element("float x", "x", lambda x: x.nope())
    refused("on meta tensors it fails by itself", lambda x: failing(x), X)
    none = kernel("const float* x, float* y", "", lambda x: None)
    refused("its results are no tensors", lambda x: none(x), X)


@pytest.mark.parametrize(
    "source",
    [
        "namespace a { __device__ float f(float x) { return x; } }",
        "namespace a { namespace { __device__ float f(float x) { return x; } } }",
        "struct A { static __device__ float f(float x) { return x; } };",
        "class A final : public B { public: __device__ float f(float x) { return x; } };",
        "namespace a { __global__ void f(const float* x, float* y) {} }",
    ],
)
def test_functions_that_need_a_scope_are_refused(source: str) -> None:
    sizes = {"grid": 1, "block": 1} if "__global__" in source else {}
    make: Any = bt.cuda_kernel if sizes else bt.cuda_function
    with pytest.raises(ValueError, match=r"BT208(.|\n)*and not in `[aA]` alone"):
        make(source, name="f", cpu=abs, **sizes)


@needs_gpu
@pytest.mark.parametrize(
    "source",
    [
        "namespace { __device__ float f(float x) { return x + 1; } }",
        "namespace a { __device__ float f(float x) { return x + 1; } }\nusing namespace a;",
        "namespace a { __device__ float f(float x) { return x + 1; } }\nusing a::f;",
        "inline namespace a { __device__ float f(float x) { return x + 1; } }",
        "enum struct A { B };\n__device__ float f(float x) { return x + 1; }",
        "struct A { float v; } kept;\n__device__ float f(float x) { return x + 1; }",
        "#define OPEN namespace a {\n__device__ float f(float x) { return x + 1; }",
    ],
)
def test_functions_that_need_no_scope(source: str) -> None:
    own = bt.cuda_function(source, name="f", cpu=lambda x: x + 1)
    check(lambda x: own(x), X)


def test_types_are_read() -> None:
    parameter = "const unsigned long long int* __restrict__ const x"
    ((found,),) = (one.parameters for one in functions(f"void f({parameter}) {{}}", "f"))
    assert cast(found) == "const unsigned long long int*"
    for type, numbers in {
        "unsigned": Numbers("uint", 32),
        "short int": Numbers("int", 16),
        "long unsigned": Numbers("uint", 64),
        "ulonglong2": Numbers("uint", 64, 2),
        "const cuda::std::uint16_t": Numbers("uint", 16),
        "real": None,
        "T": None,
        "const float&": None,
    }.items():
        assert Numbers.of(type) == numbers, type
