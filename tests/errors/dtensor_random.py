"""Random numbers, of which each process would draw its own."""

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Shard

import babytriton as bt
from tests.distributed.alone import one_of_many


@bt.jit
def drop(x):
    return F.dropout(x, 0.5)


def run():
    with one_of_many(2, 0) as mesh:
        drop(DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]))
