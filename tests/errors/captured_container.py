"""A list from outside that would grow while compiling."""

import torch

import babytriton as bt

SEEN = []


@bt.jit
def f(x):
    SEEN.append(x)
    return x


def run():
    f(torch.ones(3))
