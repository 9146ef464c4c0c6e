"""A kernel updates a name that is an element of a tensor."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    total = x[0]
    for i in range(1, len(x)):
        total += x[i]
    out[0] = total


def run():
    f(torch.ones(4), torch.ones(1))
