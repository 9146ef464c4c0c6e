"""A size that is the number in a tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    n = x.sum().int().item()
    return torch.zeros(n)


def run():
    f(torch.ones(3))
