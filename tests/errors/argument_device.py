"""A tensor on another device than the target's."""

import torch

import babytriton as bt


@bt.jit(bt.Target("cuda", arch="sm_80"))
def f(x):
    return x + 1


def run():
    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        f(torch.ones(3))
    finally:
        torch.cuda.is_available = available
