"""NumPy's arrays as results of a call with DTensors."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor

import babytriton as bt
from tests.distributed.alone import one_process


@bt.jit(out="numpy")
def doubled(x):
    return x * 2


def run():
    with one_process() as mesh:
        doubled(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
