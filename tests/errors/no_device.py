"""A call for a GPU that is not there."""

import torch

import babytriton as bt


@bt.jit("gpu")
def f(x):
    return x + 1


def run():
    available, version = torch.cuda.is_available, torch.version.cuda
    torch.cuda.is_available, torch.version.cuda = lambda: False, "13.0"
    try:
        f(torch.ones(3))
    finally:
        torch.cuda.is_available, torch.version.cuda = available, version
