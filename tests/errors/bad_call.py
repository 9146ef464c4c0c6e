"""An argument that is missing."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    return x + y


def run():
    f(torch.ones(3))
