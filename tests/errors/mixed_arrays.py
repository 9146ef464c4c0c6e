"""A NumPy array beside a tensor."""

import numpy as np
import torch

import babytriton as bt


@bt.jit
def f(x, y):
    return x + y


def run():
    f(torch.ones(3), np.ones(3))
