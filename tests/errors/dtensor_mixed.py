"""A plain tensor beside a DTensor."""

import torch
from torch.distributed.tensor import Replicate, distribute_tensor

import babytriton as bt
from tests.distributed.alone import one_process


@bt.jit
def scale(x, weight):
    return x * weight


def run():
    with one_process() as mesh:
        scale(distribute_tensor(torch.ones(4, 3), mesh, [Replicate()]), torch.ones(3))
