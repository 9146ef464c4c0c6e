"""An operator on tensors that are on different devices."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    with bt.device("gpu"):
        y = x.exp()
    return x + y


def run():
    f.lower(torch.ones(3))
