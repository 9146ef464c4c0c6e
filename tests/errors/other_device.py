"""A factory for another device than the function's."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    return x + torch.zeros(3, device="cuda")


def run():
    f(torch.ones(3))
