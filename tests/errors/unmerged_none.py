"""A function that returns on one path only."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 0:
        return x


def run():
    f(torch.ones(3))
