"""An `and` whose right side writes to a tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    if x.sum() > 0 and y.add_(1).sum() > 3:
        x = x * 2
    return x


def run():
    f(torch.ones(3), torch.ones(3))
