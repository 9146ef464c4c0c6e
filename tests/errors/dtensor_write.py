"""A write to a DTensor that the function needs as a whole."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor

import babytriton as bt
from tests.distributed.alone import one_process


@bt.jit
def accumulate(x):
    x.copy_(x.cumsum(0))


def run():
    with one_process() as mesh:
        accumulate(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
