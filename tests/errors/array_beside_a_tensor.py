"""A function that adds an array of NumPy's to a tensor."""

import numpy as np
import torch

import babytriton as bt

STEPS = np.ones(4, dtype=np.float32)


@bt.jit
def f(x):
    return x + STEPS


def run():
    f(torch.ones(4))
