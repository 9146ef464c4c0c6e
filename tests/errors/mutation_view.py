"""An augmented assignment that another name would see through a view."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x + 1
    first = y[0]
    y += 1
    return first, y


def run():
    f(torch.ones(3))
