"""A compiled function called after a tensor it reads from outside got another shape."""

import torch

import babytriton as bt

weights = torch.ones(4)


@bt.jit("cpu")
def f(x):
    return x * weights


def run():
    global weights
    compiled = f.lower(torch.ones(4)).compile()
    weights = torch.ones(2)
    compiled(torch.ones(4))
