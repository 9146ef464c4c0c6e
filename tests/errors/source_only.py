"""A call of a function whose kernels are source for other programs."""

import torch

import babytriton as bt


@bt.jit("metal")
def f(x):
    return x + 1


def run():
    f(torch.ones(3))
