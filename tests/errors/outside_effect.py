"""A call that would happen once, while compiling."""

import random

import torch

import babytriton as bt


@bt.jit
def f(x):
    return x * random.random()


def run():
    f(torch.ones(3))
