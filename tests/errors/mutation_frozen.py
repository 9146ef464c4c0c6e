"""Writing to a tensor that is an argument on one path only."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    y += 1
    return y


def run():
    f(torch.ones(3))
