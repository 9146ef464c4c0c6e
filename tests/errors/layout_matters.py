"""A function that writes to a tensor which is a copy of another, or not, as its argument lies."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    y = x + 1
    y.reshape(-1)[0] = 5
    return y.sum()


def run():
    f(torch.ones(4, 3).T)
