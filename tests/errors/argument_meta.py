"""A call with a tensor that has no data."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    return x + 1


def run():
    f(torch.ones(3, device="meta"))
