"""The gradient of an argument, which is no argument."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.grad is None:
        return x
    return x - 0.1 * x.grad


def run():
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.ones(3)
    f(x)
