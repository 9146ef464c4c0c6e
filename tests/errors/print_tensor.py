"""Printing a tensor while compiling."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    print(x + 1)
    return x


def run():
    f(torch.ones(3))
