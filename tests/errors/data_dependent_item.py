"""A number out of a tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x * x.max().item()


def run():
    f(torch.ones(3))
