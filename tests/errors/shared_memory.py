"""A function that writes to one of two arguments that share memory."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    x += 1
    return x * y


def run():
    x = torch.ones(4, 4)
    f(x, x[0])
