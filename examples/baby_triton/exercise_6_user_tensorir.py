"""Exercise 6: a TensorIR function of one's own inside the function.

``custom_add`` is called like any function. Its last buffer is the result: given a placeholder, it
writes there; without one it gets memory of its own, of the shape that its buffers say. Either way
it fuses with the add before it: one kernel.

The article's TVM is older. Today a function with blocks says ``s_tir=True``, and a block is
``T.sblock``.
"""

import torch
from tvm.script import tirx as T

import babytriton as bt
from babytriton import Tensor


@T.prim_func(private=True, s_tir=True)
def custom_add(
    x: T.Buffer((T.int64(2), T.int64(3)), "float32"),
    y: T.Buffer((T.int64(2), T.int64(3)), "float32"),
    T_add: T.Buffer((T.int64(2), T.int64(3)), "float32"),
):
    T.func_attr({"op_pattern": 0, "tirx.noalias": T.bool(True)})
    for ax0, ax1 in T.grid(T.int64(2), T.int64(3)):
        with T.sblock("T_add"):
            v_ax0, v_ax1 = T.axis.remap("SS", [ax0, ax1])
            T.reads(x[v_ax0, v_ax1], y[v_ax0, v_ax1])
            T.writes(T_add[v_ax0, v_ax1])
            T_add[v_ax0, v_ax1] = x[v_ax0, v_ax1] + y[v_ax0, v_ax1]


@T.prim_func(s_tir=True)
def normalized(a: T.handle, eps: T.float32, b: T.handle, c: T.handle):
    """Rows of any number and length, divided by their sums; and the sums."""
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n, m), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i, j in T.grid(n, m):
        with T.sblock("sums"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] += A[vi, vj]
    for i, j in T.grid(n, m):
        with T.sblock("quotients"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] / (C[vi] + eps)


def add(x: Tensor(shape=(2, 3), dtype="float32"), y: Tensor(shape=(2, 3), dtype="float32")):
    sum = x + y
    placeholder = sum
    out = custom_add(x, sum, placeholder)
    return out  # noqa: RET504


def add_without_placeholder(
    x: Tensor(shape=(2, 3), dtype="float32"), y: Tensor(shape=(2, 3), dtype="float32")
):
    return custom_add(x, x + y)


def shares(x, eps):
    quotients, sums = normalized(x.exp(), eps)
    return quotients * 100, sums


x, y = torch.randn(2, 3), torch.randn(2, 3)
for function in (add, add_without_placeholder):
    lowered = bt.jit("gpu")(function).lower()
    print(f"{function.__name__}: one kernel,", *lowered.schedule().kernels)
    torch.testing.assert_close(bt.jit("cpu")(function)(x, y), x + (x + y))
print(lowered.as_text())
compiled = lowered.compile()
source = compiled.source()
print(source[source.rindex('extern "C"') :].strip())

rows = torch.randn(5, 7)
quotients, sums = bt.jit("cpu")(shares)(rows, 1e-6)
torch.testing.assert_close(sums, rows.exp().sum(1))
torch.testing.assert_close(quotients, rows.exp() / (sums[:, None] + 1e-6) * 100)
print("two results, sizes that the arguments decide, a number:", quotients.shape, sums.shape)

try:
    bt.jit("cpu")(add_without_placeholder)(rows, rows)
except (bt.CompileError, TypeError, ValueError) as error:
    print(error)
try:
    bt.jit("cpu")(lambda x: custom_add(x, x))(rows)
except bt.CompileError as error:
    print(error)
