"""A factory for a device that there are no kernels for."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    return x + torch.zeros(3, device="xla")


def run():
    f(torch.ones(3))
