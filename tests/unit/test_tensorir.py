"""TensorIR functions called by name inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tvm.script import ir as I
from tvm.script import tirx as T

import babytriton as bt
from tests.conformance import gpu


@T.prim_func(private=True, s_tir=True)
def custom_add(
    x: T.Buffer((T.int64(2), T.int64(3)), "float32"),
    y: T.Buffer((T.int64(2), T.int64(3)), "float32"),
    T_add: T.Buffer((T.int64(2), T.int64(3)), "float32"),
):
    T.func_attr({"op_pattern": 0, "tirx.noalias": True})
    for ax0, ax1 in T.grid(T.int64(2), T.int64(3)):
        with T.sblock("T_add"):
            v_ax0, v_ax1 = T.axis.remap("SS", [ax0, ax1])
            T_add[v_ax0, v_ax1] = x[v_ax0, v_ax1] + y[v_ax0, v_ax1]


@T.prim_func
def scaled(x: T.Buffer((2, 3), "float32"), s: T.float32, out: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        out[i, j] = x[i, j] * s


@T.prim_func(s_tir=True)
def shares(a: T.handle, b: T.handle, c: T.handle):
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n, m), "float32")
    for i, j in T.grid(n, m):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] += A[vi, vj]
    for i, j in T.grid(n, m):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] / B[vi]


@T.prim_func(s_tir=True)
def accumulate(total: T.Buffer((2, 3), "float32"), x: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("total"):
            vi, vj = T.axis.remap("SS", [i, j])
            total[vi, vj] += x[vi, vj]


@T.prim_func(s_tir=True)
def histogram(x: T.handle, counts: T.Buffer((10,), "int32")):
    n = T.int64()
    X = T.match_buffer(x, (n,), "int64")
    for i in range(n):
        with T.sblock("counts"):
            vi = T.axis.opaque(n, i)
            counts[X[vi]] = counts[X[vi]] + 1


@T.prim_func(s_tir=True)
def repeated(x: T.handle, n: T.int32, k: T.int32, y: T.handle):
    X = T.match_buffer(x, (n,), "float64")
    Y = T.match_buffer(y, (n * k,), "float64")
    for i in range(n * k):
        with T.sblock("Y"):
            vi = T.axis.spatial(n * k, i)
            Y[vi] = X[vi // k]


@T.prim_func
def reversed_twice(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((4,), "float32")
    for i in range(4):
        t[i] = x[i] * 2.0
    for i in range(4):
        out[i] = t[3 - i]


@T.prim_func
def prefixes(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
    for i in range(4):
        out[i] = 0.0
        for j in range(i + 1):
            out[i] = out[i] + x[j]


@T.prim_func(s_tir=True)
def constants(c: T.Buffer((3,), "bool"), d: T.Buffer((3,), "bfloat16")):
    for i in range(3):
        with T.sblock("c"):
            vi = T.axis.spatial(3, i)
            c[vi] = vi > 1
            d[vi] = T.bfloat16(2.0)


@T.prim_func(s_tir=True)
def on_threads(x: T.Buffer((2, 3), "float32"), out: T.Buffer((2, 3), "float32")):
    for b in T.thread_binding(2, thread="blockIdx.x"):
        for t in T.thread_binding(3, thread="threadIdx.x"):
            with T.sblock("out"):
                vi = T.axis.spatial(2, b)
                vj = T.axis.spatial(3, t)
                out[vi, vj] = x[vi, vj] * 2.0


@T.prim_func(s_tir=True)
def in_parallel(x: T.Buffer((2, 3), "float32"), out: T.Buffer((2, 3), "float32")):
    for b in T.parallel(2):
        for t in T.vectorized(3):
            with T.sblock("out"):
                vi = T.axis.spatial(2, b)
                vj = T.axis.spatial(3, t)
                out[vi, vj] = x[vi, vj] * 2.0


@I.ir_module
class Library:
    @T.prim_func(s_tir=True)
    def exponent(x: T.Buffer((2, 3), "float32"), out: T.Buffer((2, 3), "float32")):
        for i, j in T.grid(2, 3):
            with T.sblock("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = T.exp(x[vi, vj])


A = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
B = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
V = torch.randn(4, generator=torch.Generator().manual_seed(2))
N = torch.randint(0, 10, (101,), generator=torch.Generator().manual_seed(3))


def both(fn: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results on the CPU and on a GPU, or on the emulator."""
    compiled = bt.jit(gpu.TARGET)(fn).lower(*args).compile()
    return bt.jit("cpu")(fn)(*args), gpu.call(compiled, args)


def check(fn: Callable[..., Any], expected: Any, *args: Any) -> None:
    for found in both(fn, *args):
        torch.testing.assert_close(found, expected)


def kernels(fn: Callable[..., Any], *args: Any) -> int:
    return len(bt.jit("cpu")(fn).lower(*args).schedule().kernels)


def test_the_result_is_what_is_left_out() -> None:
    def fn(x, y):
        return custom_add(x, x + y) * 2

    check(fn, (A + A + B) * 2, A, B)
    assert kernels(fn, A, B) == 1


def test_placeholder() -> None:
    def fn(x, y):
        sum = x + y
        placeholder = sum
        out = custom_add(x, sum, placeholder)
        return out + sum

    # `sum` and `placeholder` are names of one tensor, and it is written.
    check(fn, 2 * (A + A + B), A, B)


def test_a_tensor_given_as_result_is_written() -> None:
    def fn(x, y):
        out = torch.empty_like(x)
        custom_add(x, y, out)
        return out

    check(fn, A + B, A, B)


def test_an_argument_given_as_result_is_written() -> None:
    def fn(x, y, out):
        found = custom_add(x, y, out[1:3])
        return found * 2

    out = torch.zeros(4, 3)
    torch.testing.assert_close(bt.jit("cpu")(fn)(A, B, out), (A + B) * 2)
    torch.testing.assert_close(out, torch.cat([torch.zeros(1, 3), A + B, torch.zeros(1, 3)]))


def test_a_tensor_that_is_updated_keeps_what_it_held() -> None:
    def fn(x, y):
        total = x * 1
        accumulate(total, y)
        accumulate(total, x=y)
        return total

    check(fn, A + 2 * B, A, B)
    assert kernels(fn, A, B) == 1


@T.prim_func(s_tir=True)
def diagonal(x: T.Buffer((3,), "float32"), out: T.Buffer((3, 4), "float32")):
    for i in range(3):
        with T.sblock("out"):
            vi = T.axis.spatial(3, i)
            out[vi, vi] = x[vi]


@T.prim_func
def positive(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
    for i in range(4):
        if x[i] > 0.0:
            out[i] = x[i]


def test_a_tensor_that_is_written_in_part_keeps_the_rest() -> None:
    def on_diagonal(x):
        out = torch.ones(3, 4)
        diagonal(x, out)
        return out

    def where_positive(x):
        out = x * 10
        return positive(x, out)

    x = torch.arange(3.0)
    check(on_diagonal, torch.ones(3, 4).diagonal_scatter(x), x)
    check(where_positive, torch.where(V > 0, V, V * 10), V)


def test_another_function_under_the_name_compiles_again() -> None:
    chosen = scaled
    fn = bt.jit("cpu")(lambda x: chosen(x, 2.0))
    torch.testing.assert_close(fn(A), A * 2)
    chosen = custom_add
    with pytest.raises(bt.CompileError, match="`y` of `chosen` is f32"):
        fn(A)


def test_scattered_updates() -> None:
    def fn(x):
        counts = torch.ones(10, dtype=torch.int32)
        histogram(x, counts)
        return counts

    check(fn, torch.bincount(N, minlength=10).int() + 1, N)


def test_numbers_are_constants_or_arguments() -> None:
    def constant(x):
        return scaled(x + 1, 3) + 1

    def argument(x, s):
        return scaled(x + 1, s) + 1

    def tensor(x, s):
        return scaled(x + 1, s.sum()) + 1

    check(constant, (A + 1) * 3 + 1, A)
    check(argument, (A + 1) * 2.5 + 1, A, 2.5)
    check(tensor, (A + 1) * B.sum() + 1, A, B)
    assert kernels(constant, A) == kernels(argument, A, 2.5) == 1
    run_time = bt.jit(argument)
    for s in (0.5, -2.0):
        torch.testing.assert_close(run_time(A, s), (A + 1) * s + 1)
    assert len(run_time.specializations()) == 1


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 33)])
def test_symbolic_sizes_and_several_results(shape: tuple[int, int]) -> None:
    def fn(x):
        sums, parts = shares(x.exp())
        return sums * 2, parts + 1

    x = torch.randn(shape)
    sums = x.exp().sum(1)
    check(fn, (sums * 2, x.exp() / sums[:, None] + 1), x)


def test_sizes_given_as_numbers() -> None:
    def fn(x):
        return repeated(x + 1, x.shape[0], 3)

    x = torch.randn(5, dtype=torch.float64)
    check(fn, (x + 1).repeat_interleave(3), x)


def test_plain_loops() -> None:
    check(lambda x: reversed_twice(x) + 1, (V * 2).flip(0) + 1, V)
    check(lambda x: prefixes(x) + 1, V.cumsum(0) + 1, V)
    assert kernels(lambda x: reversed_twice(x) + 1, V) == 1


def test_no_inputs_and_other_dtypes() -> None:
    def fn():
        c, d = constants()
        return c.logical_not(), d * 2

    check(fn, (torch.tensor([True, True, False]), torch.full((3,), 4.0).bfloat16()))


def test_no_elements() -> None:
    x = torch.randn(0, 3)
    check(lambda x: shares(x)[1] + 1, x, x)


def test_function_of_a_module_is_compiled_once() -> None:
    fn = bt.jit(lambda x: Library["exponent"](x) + x)
    for _ in range(2):
        torch.testing.assert_close(fn(A), A.exp() + A)
    assert len(fn.specializations()) == 1


def test_own_schedules_are_left_alone() -> None:
    def on_gpu(x):
        return on_threads(x + 1) * 3

    compiled = bt.jit(gpu.TARGET)(on_gpu).lower(A).compile()
    torch.testing.assert_close(gpu.call(compiled, (A,)), (A + 1) * 6)
    assert "on_threads" in compiled.kernels
    assert '"blockIdx.x"' in str(compiled.scheduled.mod["on_threads"].script())
    check(lambda x: in_parallel(x + 1) * 3, (A + 1) * 6, A)
    scheduled = bt.jit("cpu")(lambda x: in_parallel(x + 1) * 3).lower(A).schedule()
    assert "T.parallel(2)" in str(scheduled.mod["in_parallel"].script())


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, y: custom_add(x), "an argument for `y` is missing"),
        (lambda x, y: custom_add(x, y[:1]), "`y` of `custom_add` is f32[2, 3], and f32[1, 3]"),
        (lambda x, y: custom_add(x, y.double()), "is f32[2, 3], and f64[2, 3] is given"),
        (lambda x, y: custom_add(x, 1.0), "is f32[2, 3], and 1.0 is given"),
        (lambda x, y: custom_add(x, y, y, x), "it takes x, y, T_add: 4 arguments are given"),
        (lambda x, y: custom_add(x, y, z=x), "there is no `z` left to give"),
        (lambda x, y: scaled(x, y), "`s` of `scaled` is float32, and f32[2, 3] is given"),
        (lambda x, y: accumulate(x=x), "give `total` the tensor to start from"),
        (lambda x, y: repeated(y.double()[0], 2, 2), "`n` is 2 in `n`, and 3 in `X`"),
        (lambda x, y: repeated(y.double()[0], 3, 2**40), "does not fit `k`, an int32"),
        (lambda x, y: on_threads(x), "its loops are the threads of a GPU"),
    ],
)
def test_misuse(fn: Callable[..., Any], why: str) -> None:
    with pytest.raises(bt.CompileError) as caught:
        bt.jit("cpu")(fn)(A, B)
    assert why in str(caught.value)
    assert "test_tensorir.py" in str(caught.value)


@T.prim_func(s_tir=True)
def product(a: T.handle, b: T.handle, c: T.handle):
    n, m, k = T.int32(), T.int32(), T.int32()
    A = T.match_buffer(a, (n, k), "float32")
    B = T.match_buffer(b, (k, m), "float32")
    C = T.match_buffer(c, (n, m), "float32")
    for i, j, l in T.grid(n, m, k):  # noqa: E741
        with T.sblock("C"):
            vi, vj, vl = T.axis.remap("SSR", [i, j, l])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vl] * B[vl, vj]


@T.prim_func(s_tir=True)
def rounded_up(a: T.Buffer((5,), "int32"), c: T.Buffer((5,), "int32")):
    for i in range(5):
        with T.sblock("C"):
            vi = T.axis.spatial(5, i)
            c[vi] = 0
            while c[vi] < a[vi]:
                c[vi] = c[vi] + 3


def test_a_reduction_takes_its_consumer_along() -> None:
    def fn(x, y):
        return torch.relu(product(x, y))

    x, y = torch.randn(65, 33), torch.randn(33, 17)
    check(fn, torch.relu(x @ y), x, y)
    assert kernels(fn, x, y) == 1


def test_statements_that_no_rule_schedules() -> None:
    n = torch.tensor([0, 1, 5, 7, 9], dtype=torch.int32)
    check(lambda n: rounded_up(n) + 1, (n + 2) // 3 * 3 + 1, n)


def test_one_tensor_in_two_places() -> None:
    def fn(x):
        y = x + 1
        return custom_add(y, y) * y

    check(fn, 2 * (A + 1) ** 2, A)


@T.prim_func(s_tir=True)
def copied(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
    with T.sblock("out"):
        T.reads(x[0:4])
        T.writes(out[0:4])
        T.evaluate(
            T.call_extern("int64", "memcpy", out.access_ptr("w"), x.access_ptr("r"), T.int64(16))
        )


def test_calls_of_c_functions_on_addresses() -> None:
    fn = bt.jit("cpu")(lambda x: copied(x + 1) * 2)
    torch.testing.assert_close(fn(V), (V + 1) * 2)
