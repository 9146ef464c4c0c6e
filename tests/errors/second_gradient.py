"""A gradient of a gradient that has to know sizes which calls tell."""

import torch
import torch.nn.functional as F

import babytriton as bt


@bt.jit(dynamic=True)
def f(x, w):
    return F.conv2d(x, w).view(-1, x.shape[0])


def run():
    x = torch.ones(4, 3, 8, 8, requires_grad=True)
    found = f(x, torch.ones(8, 3, 3, 3))
    torch.autograd.grad(found.sum(), x, create_graph=True)
