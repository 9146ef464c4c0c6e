"""A kernel divides an integer by zero."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def f(x, y, out):
    for i in range(len(x)):
        out[i] = x[i] // y[i]


def run():
    f(torch.tensor([1, 2]), torch.tensor([1, 0]), torch.zeros(2))
