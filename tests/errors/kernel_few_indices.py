"""A kernel writes into a row instead of an element."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(x)):
        out[i] = x[i]


def run():
    f(torch.ones(4), torch.ones(4, 2))
