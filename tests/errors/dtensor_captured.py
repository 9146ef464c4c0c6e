"""A DTensor that the function reads from outside, and a plain argument."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor

import babytriton as bt
from tests.distributed.alone import one_process


def run():
    with one_process() as mesh:
        weight = distribute_tensor(torch.ones(6, 3), mesh, [Shard(0)])

        @bt.jit
        def project(x):
            return x @ weight.t()

        project(torch.ones(4, 3))
