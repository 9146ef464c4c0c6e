"""A kernel returns a value."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


def run():
    f(torch.ones(4))
