"""A block on another device in a function that branches at run time."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    if x.sum() > 0:
        x = x + 1
    with bt.device("gpu"):
        return x * 2


def run():
    f.lower(torch.ones(3))
