"""An assignment to elements."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x + 1
    y[0] = 0
    return y


def run():
    f(torch.ones(3))
