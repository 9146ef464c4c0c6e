"""A module that torch.distributed has hooks on, compiled with them."""

import torch
from torch.distributed.fsdp import fully_shard

import babytriton as bt
from tests.distributed.alone import one_process


def run():
    with one_process() as mesh:
        linear = fully_shard(torch.nn.Linear(3, 3), mesh=mesh)

        @bt.jit
        def doubled(x):
            return linear(x) * 2

        doubled(torch.ones(4, 3))
