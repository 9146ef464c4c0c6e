"""A statement outside the language."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    try:
        return x.log()
    except ValueError:
        return x


def run():
    f(torch.ones(3))
