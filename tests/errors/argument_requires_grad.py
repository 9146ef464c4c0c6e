"""A tensor that records gradients, given to a kernel."""

import torch

import babytriton as bt


@bt.kernel("cpu")
def double(x, out):
    for i in bt.grid(3):
        out[i] = x[i] * 2


def run():
    double(torch.ones(3, requires_grad=True), torch.zeros(3))
