"""A generator."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    yield x + 1


def run():
    f(torch.ones(3))
