"""An augmented assignment that would write into the caller's tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    x += 1
    return x


def run():
    f(torch.ones(3))
