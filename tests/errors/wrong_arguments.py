"""A helper called with the wrong arguments."""

import torch

import babytriton as bt


def scale(x, factor):
    return x * factor


@bt.jit
def f(x):
    return scale(x)


def run():
    f(torch.ones(3))
