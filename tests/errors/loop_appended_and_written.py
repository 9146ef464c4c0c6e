"""A loop of many steps that writes to a tensor which a list holds since a step before."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found, total = [], torch.zeros(3)
    for _ in range(1000):
        total += x
        found.append(total)
    return torch.stack(found)


def run():
    f(torch.ones(3))
