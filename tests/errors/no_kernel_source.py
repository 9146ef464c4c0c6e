"""A function of the math library that a kind of GPU lacks."""

import torch

import babytriton as bt


@bt.jit("webgpu")
def f(x):
    return torch.lgamma(x)


def run():
    f.lower(torch.ones(3)).compile()
