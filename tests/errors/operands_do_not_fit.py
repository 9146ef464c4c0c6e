"""Shapes that do not broadcast."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    return torch.exp(x) + y


def run():
    f(torch.ones(8, 8), torch.ones(3, 5))
