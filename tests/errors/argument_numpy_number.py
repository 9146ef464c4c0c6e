"""A number of NumPy's that is none of Python's."""

import numpy as np
import torch

import babytriton as bt


@bt.jit
def f(x, scale):
    return x * scale


def run():
    f(torch.ones(3), np.float32(2))
