"""Plain Python that raises."""

import torch

import babytriton as bt

SIZES = {"small": 2}


@bt.jit
def f(x):
    return x * SIZES["large"]


def run():
    f(torch.ones(3))
