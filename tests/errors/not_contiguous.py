"""A function that writes to an argument through another shape, which torch would copy."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    x.reshape(-1)[0] = 5
    return x.sum()


def run():
    f(torch.ones(4, 3).T)
