"""An operator that writes to an argument it is declared to read."""

import torch

import babytriton as bt


@bt.library_op("babytriton_errors::moved")
def moved(average, x):
    average.add_(x)
    return average * 2


def run():
    torch.ops.babytriton_errors.moved(torch.ones(3), torch.ones(3))
