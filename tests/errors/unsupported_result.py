"""A result that is neither tensor nor number."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x, object


def run():
    f(torch.ones(3))
