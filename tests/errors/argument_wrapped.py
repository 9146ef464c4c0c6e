"""Tensors that torch.func passes through a function have no numbers to run kernels on."""

import torch

import babytriton as bt


@bt.jit("cpu")
def f(x):
    return x + 1


def run():
    torch.func.functionalize(f)(torch.ones(3, 4))
