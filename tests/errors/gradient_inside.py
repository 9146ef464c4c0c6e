"""A gradient that is asked for within the function."""

import torch

import babytriton as bt


@bt.jit
def f(x, w):
    loss = (x * w).square().sum()
    loss.backward()
    return w.grad


def run():
    f(torch.ones(3), torch.ones(3, requires_grad=True))
