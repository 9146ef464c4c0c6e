"""A conditional expression on a tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x if x.sum() > 0 else -x


def run():
    f(torch.ones(3))
