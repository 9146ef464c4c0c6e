"""A kernel adds a float to an element that is an integer."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, out):
    for i in range(len(out)):
        out[i] += x[i]


def run():
    f(torch.ones(5), torch.ones(5, dtype=torch.int64))
