"""A compiled function with a gradient of its own, where torch traces."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import babytriton as bt


@bt.jit
def rounded(x):
    return torch.round(x) * 1


rounded.backward(lambda grad, result, x: grad)


def run():
    make_fx(rounded)(torch.ones(3))
