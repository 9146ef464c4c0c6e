"""A call under autocast."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x @ x


def run():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f(torch.ones(3, 3))
