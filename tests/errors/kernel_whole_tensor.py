"""A kernel computes with a whole tensor."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(x)):
        out[i] = x + 1


def run():
    f(torch.ones(4), torch.ones(4))
