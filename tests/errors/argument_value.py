"""A compiled function called with another constant."""

import torch

import babytriton as bt


@bt.jit
def f(x, dim):
    return x.sum(dim)


def run():
    f.lower(torch.ones(3, 4), 0).compile()(torch.ones(3, 4), 1)
