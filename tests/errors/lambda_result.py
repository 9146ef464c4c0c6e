"""A lambda that returns another, on one line."""

import torch

import babytriton as bt

f = bt.jit(lambda x: lambda y: x + y)


def run():
    f(torch.ones(3))
