"""Arguments that do not fit the buffers of a TensorIR function."""

import torch
from tvm.script import tirx as T

import babytriton as bt


@T.prim_func(s_tir=True)
def add(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 4), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n, 4), "float32")
    for i, j in T.grid(n, 4):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + B[vi]


@bt.jit
def f(x, y):
    return add(x, y)


def run():
    f(torch.ones(8, 4), torch.ones(4))
