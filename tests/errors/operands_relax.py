"""Arguments that a function of Relax's library refuses: it converts no dtypes."""

import torch
from tvm import relax

import babytriton as bt


@bt.jit
def f(x):
    return relax.op.add(x, x.double())


def run():
    f(torch.ones(8))
