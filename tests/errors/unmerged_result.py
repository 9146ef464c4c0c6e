"""Branches that return different dtypes."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    if x.sum() > 0:
        return x
    return x.to(torch.int64)


def run():
    f(torch.ones(3))
