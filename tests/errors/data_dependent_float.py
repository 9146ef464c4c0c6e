"""A tensor handed to Python's float."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x * float(x[0])


def run():
    f(torch.ones(3))
