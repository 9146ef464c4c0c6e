"""A name that only one branch binds."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 0:
        y = x * 2
    return y


def run():
    f(torch.ones(3))
