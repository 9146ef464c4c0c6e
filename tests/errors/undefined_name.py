"""A name that is bound nowhere."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x + scale  # noqa: F821


def run():
    f(torch.ones(3))
