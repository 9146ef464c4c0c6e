"""A kernel reads a name that has a value on one way only."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(x)):
        if x[i] > 0:
            y = x[i] * 2
        out[i] = y


def run():
    f(torch.ones(4), torch.ones(4))
