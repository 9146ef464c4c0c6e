"""A comprehension."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return [x + i for i in range(3)]


def run():
    f(torch.ones(3))
