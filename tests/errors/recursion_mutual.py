"""Two functions that call each other."""

import torch

import babytriton as bt


def ping(x):
    return pong(x + 1)


def pong(x):
    return ping(x - 1)


@bt.jit
def f(x):
    return ping(x)


def run():
    f(torch.ones(3))
