"""A tensor that is written to, and that records gradients."""

import torch

import babytriton as bt


@bt.jit
def f(x, w):
    w.mul_(2)
    return x * w


def run():
    f(torch.ones(3), torch.ones(3, requires_grad=True))
