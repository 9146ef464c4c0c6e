"""A function that calls itself."""

import torch

import babytriton as bt


def again(x):
    return again(x + 1)


@bt.jit
def f(x):
    return again(x)


def run():
    f(torch.ones(3))
