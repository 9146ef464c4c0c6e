"""An update in place whose result has another shape."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    x += y
    return x


def run():
    f(torch.ones(3), torch.zeros(4, 3))
