"""The gradient of a function that was lowered without any."""

import torch

import babytriton as bt


@bt.jit
def f(x, w):
    return x * w


def run():
    f.lower(torch.ones(3), torch.ones(3)).gradient()
