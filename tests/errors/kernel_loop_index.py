"""The index of a kernel goes out of range in the last iteration of a loop."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    n = len(x)
    for i in range(n):
        out[i] = x[i] + x[i + 1]


def run():
    f(torch.ones(4), torch.ones(4))
