"""An index of a kernel is out of range at run time."""

import torch

import babytriton as bt


@bt.kernel("cpu", bounds_check=True)
def f(x, counts):
    for i in range(len(x)):
        counts[x[i]] += 1


def run():
    f(torch.tensor([0, 3, 7, 9]), torch.zeros(4))
