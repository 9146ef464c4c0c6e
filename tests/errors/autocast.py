"""A program that was compiled outside of autocast, called under it."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x @ x


def run():
    compiled = f.lower(torch.ones(3, 3)).compile()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(torch.ones(3, 3))
