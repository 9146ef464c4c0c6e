"""A compiled function called with a tensor that is not expanded."""

import torch

import babytriton as bt


@bt.jit
def f(x, y):
    return x + y


def run():
    x, bias = torch.ones(3, 4), torch.ones(4).expand(3, 4)
    f.lower(x, bias).compile()(x, torch.ones(3, 4))
