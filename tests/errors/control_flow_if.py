"""A branch."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 0:
        return x
    return -x


def run():
    f(torch.ones(3))
