"""An operator that gives more than it is declared to."""

import torch

import babytriton as bt


@bt.library_op("babytriton_errors::both")
def both(x):
    return x.sin(), x.cos()


def run():
    torch.ops.babytriton_errors.both(torch.ones(3))
