"""A step of a loop of many that takes an item of a list whose number the step decides."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    found = [x]
    for i in range(1000):
        found.append(found[i // 2] + 1)
    return torch.stack(found)


def run():
    f(torch.ones(3))
