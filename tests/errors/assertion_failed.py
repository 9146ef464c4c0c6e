"""An assertion about a tensor that does not hold at run time."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    assert (x > 0).all(), f"the smallest is {x.min():.2f}"
    return x.log()


def run():
    f(torch.tensor([1.0, 2.0]))
    f(torch.tensor([1.0, -2.0]))
