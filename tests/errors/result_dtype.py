"""A result of a dtype that arrays of NumPy's cannot have."""

import torch

import babytriton as bt


@bt.jit(out="numpy")
def f(x):
    return x.bfloat16()


def run():
    f(torch.ones(3))
