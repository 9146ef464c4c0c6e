"""The characters of a string that shows a tensor, needed while compiling."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    name = f"mode {x.sum()}"
    return x + len(name)


def run():
    f(torch.ones(3))
