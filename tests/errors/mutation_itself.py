"""A method that changes not the numbers in a tensor, but its shape."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x * 2
    y.t_()
    return y


def run():
    f(torch.ones(4, 3))
