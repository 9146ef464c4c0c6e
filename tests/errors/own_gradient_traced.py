"""A function with a gradient of its own that returns a list, where torch traces."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import babytriton as bt


@bt.jit
def both(x):
    return [x * 2, x * 3]


both.backward(lambda grads, results, x: grads[0] + grads[1])


def run():
    make_fx(lambda x: both(x)[0])(torch.ones(3, requires_grad=True))
