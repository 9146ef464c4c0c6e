"""A detached tensor that is given numbers with gradients."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x, w):
    y = x * w
    y.detach().mul_(w)
    return y


def run():
    f(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
