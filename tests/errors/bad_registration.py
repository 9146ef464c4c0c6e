"""A row registered with something that is no function."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return torch.erf(x)


def run():
    f.register(torch.erf, build="erf")
