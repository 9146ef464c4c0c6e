"""A compiled function called with another shape."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    f.lower(torch.ones(3)).compile()(torch.ones(4))
