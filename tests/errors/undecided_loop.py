"""A name that only a step of a loop binds."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    while x.sum() < 100:
        y = x * 2
        x = x + y
    return y


def run():
    f(torch.ones(3))
