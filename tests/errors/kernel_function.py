"""A kernel calls a function that numbers of the run time cannot be given to."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(x)):
        out[i] = str(x[i])


def run():
    f(torch.ones(4), torch.ones(4))
