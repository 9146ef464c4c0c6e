"""An error that only some tensors would raise."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 8:
        raise ValueError("too large")
    return x


def run():
    f(torch.ones(3))
