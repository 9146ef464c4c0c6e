"""A loop of which each step makes a tensor longer."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    while x.sum() < 100:
        x = torch.cat([x, x])
    return x


def run():
    f(torch.ones(3))
