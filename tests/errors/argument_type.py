"""An argument that is no tensor or number."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    return x + y


def run():
    f(torch.ones(3), object())
