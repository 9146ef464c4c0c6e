"""A write to an argument, which is an array of JAX."""

import torch

import babytriton as bt
from babytriton.buffers import Program


@bt.jit
def accumulate(total, x):
    total += x
    return total.sum()


def run():
    lowered = accumulate.lower(torch.ones(3), torch.ones(3))
    Program.of(lowered, {}, records=False).require_unwritten()
