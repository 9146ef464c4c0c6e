"""An attribute that tensors do not have."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x.length


def run():
    f(torch.ones(3))
