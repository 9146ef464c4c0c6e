"""A function for GPUs, called with arrays on the CPU."""

import torch

import babytriton as bt
from babytriton.buffers import target_on


@bt.jit("gpu")
def f(x):
    return torch.exp(x)


def run():
    target_on(f.__name__, f.target, "cpu")
