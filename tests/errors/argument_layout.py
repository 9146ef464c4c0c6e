"""A sparse tensor."""

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x + 1


def run():
    f(torch.eye(3).to_sparse())
