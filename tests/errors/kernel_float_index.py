"""A kernel indexes with a float."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(x)):
        out[i / 2] = x[i]


def run():
    f(torch.ones(4), torch.ones(4))
