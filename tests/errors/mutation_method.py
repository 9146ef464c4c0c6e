"""A method that writes in place."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x + 1
    y.add_(1)
    return y


def run():
    f(torch.ones(3))
