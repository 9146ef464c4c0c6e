"""A compiled function called with sizes on the other side of its condition."""

import torch

import babytriton as bt


@bt.jit(dynamic=True)
def f(x):
    return x * 2 if x.shape[0] > 4 else x + 1


def run():
    f.lower(torch.ones(6, 3)).compile()(torch.ones(3, 3))
