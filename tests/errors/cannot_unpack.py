"""More names than values."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    a, b, c = x.split(2)
    return a + b + c


def run():
    f(torch.ones(4))
