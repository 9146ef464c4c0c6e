"""A TensorIR function that its author has scheduled for a GPU, on the CPU."""

import torch
from tvm.script import tirx as T

import babytriton as bt


@T.prim_func(s_tir=True)
def doubled(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    for thread in T.thread_binding(8, thread="threadIdx.x"):
        with T.sblock("out"):
            i = T.axis.spatial(8, thread)
            out[i] = x[i] * 2.0


@bt.jit("cpu")
def f(x):
    return doubled(x + 1)


def run():
    f(torch.ones(8))
