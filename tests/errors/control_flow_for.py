"""A loop."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    for _ in range(3):
        x = x + 1
    return x


def run():
    f(torch.ones(3))
