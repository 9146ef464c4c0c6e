"""A generator of as many items as a size that is symbolic."""

import torch

import babytriton as bt


@bt.jit(dynamic=True)
def f(x, w):
    return sum(x * w[i] for i in range(w.shape[0]))


def run():
    f.lower(torch.ones(3), torch.ones(4))
