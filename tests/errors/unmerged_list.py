"""A list that grows on one path only."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found = []
    if x.sum() > 0:
        found.append(x)
    return found


def run():
    f(torch.ones(3))
