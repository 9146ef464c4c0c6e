"""A function of another library on a tensor of the program."""

import numpy as np
import torch

import babytriton as bt


@bt.jit
def f(x):
    return np.exp(x)


def run():
    f(torch.ones(3))
