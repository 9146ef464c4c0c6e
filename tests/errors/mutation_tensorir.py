"""A TensorIR function that would write into an argument."""

import torch
from tvm.script import tirx as T

import babytriton as bt


@T.prim_func(s_tir=True)
def doubled(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("out"):
            vi = T.axis.spatial(8, i)
            out[vi] = x[vi] * 2.0


@bt.jit
def f(x, y):
    return doubled(x, y)


def run():
    f(torch.ones(8), torch.ones(8))
