"""A function whose source text is nowhere."""

import torch

import babytriton as bt

names = {}
exec("def doubled(x):\n    return x * 2", names)
doubled = names["doubled"]


@bt.jit
def f(x):
    return doubled(x)


def run():
    f(torch.ones(3))
