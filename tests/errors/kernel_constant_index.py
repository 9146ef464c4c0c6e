"""A kernel has a constant index out of range."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(x.shape[0]):
        out[i] = x[i, 5]


def run():
    f(torch.ones(4, 5), torch.ones(4))
