"""A nested tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    f(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
