"""A derivative of an operator in forward mode."""

import torch

import babytriton as bt


@bt.library_op("babytriton_errors::sines")
def sines(x):
    return torch.sin(x)


def run():
    torch.func.jvp(torch.ops.babytriton_errors.sines, (torch.ones(3),), (torch.ones(3),))
