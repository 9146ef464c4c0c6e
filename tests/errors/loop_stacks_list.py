"""A step of a loop of many that joins the items that a list has so far."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found = [x]
    for _ in range(1000):
        found.append(torch.stack(found).mean(0))
    return torch.stack(found)


def run():
    f(torch.ones(3))
