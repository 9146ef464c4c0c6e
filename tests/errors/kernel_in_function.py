"""A kernel is given one tensor twice inside a compiled function."""

import torch

import babytriton as bt


@bt.kernel
def shift(x, out):
    for i in range(len(out)):
        out[i] = x[i] + 1


@bt.jit("cpu")
def f(x):
    y = x * 2
    shift(y, y)
    return y


def run():
    f(torch.ones(5))
