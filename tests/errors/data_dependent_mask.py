"""A function of what a mask selects that needs to know how much that is."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x[x > 0].sort()


def run():
    f(torch.ones(3))
