"""A result whose shape depends on the numbers."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x[x > 0]


def run():
    f(torch.ones(3))
