"""A kind of source that the target does not have."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    return x + 1


def run():
    f.source(torch.ones(3), kind="ptx")
