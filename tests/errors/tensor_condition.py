"""Python's own `or` on a tensor of several elements."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x > 1 or x < -1


def run():
    f(torch.ones(3))
