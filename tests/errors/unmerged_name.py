"""Branches that leave a name with different shapes."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x.sum()
    return y


def run():
    f(torch.ones(3))
