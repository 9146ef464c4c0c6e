"""A dtype that kernels cannot hold."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return torch.complex(x, x)


def run():
    f(torch.ones(3))
