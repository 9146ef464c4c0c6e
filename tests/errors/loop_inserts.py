"""A step of a loop of many that does more to a list than to append to it."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found = []
    for _ in range(1000):
        x = torch.relu(x)
        found.insert(0, x)
    return torch.stack(found)


def run():
    f(torch.ones(3))
