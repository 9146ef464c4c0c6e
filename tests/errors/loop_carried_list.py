"""A list of numbers that grows in a loop of many steps."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found = []
    for i in range(1000):
        found.append(i * 2)
    return x + sum(found)


def run():
    f(torch.ones(3))
