"""A mistake inside a function that is called: both lines are shown."""

import torch

import babytriton as bt


def project(x, w):
    return x @ w


@bt.jit
def f(x, w):
    y = x * 2
    return project(y, w)


def run():
    f(torch.ones(8, 8), torch.ones(3, 5))
