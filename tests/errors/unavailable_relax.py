"""A function of Relax's library whose result has a size that depends on the data."""

import torch
from tvm.relax.op import nonzero

import babytriton as bt


@bt.jit
def f(x):
    return nonzero(x)


def run():
    f(torch.ones(8))
