"""A statement outside the language."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    yield x


def run():
    f(torch.ones(3))
