"""A loop over a number."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    for i in x.sum():
        x = x + i
    return x


def run():
    f(torch.ones(3))
