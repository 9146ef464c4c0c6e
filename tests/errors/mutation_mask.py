"""Writing a tensor to where a mask is true."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    x[x > 0] = y
    return x


def run():
    f(torch.ones(3), torch.zeros(3))
