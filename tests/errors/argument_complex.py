"""A complex tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    f(torch.ones(3, dtype=torch.complex64))
