"""An operator that reads a parameter, where torch traces."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import babytriton as bt

weight = torch.nn.Parameter(torch.ones(3))


@bt.library_op("babytriton_errors::weighted")
def weighted(x):
    return x * weight


def run():
    with FakeTensorMode():
        weighted(torch.ones(3))
