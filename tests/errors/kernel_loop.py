"""A kernel loops over something else than numbers."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for value in x:
        out[0] += value


def run():
    f(torch.ones(4), torch.ones(4))
