"""DTensors on two meshes."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import babytriton as bt
from tests.distributed.alone import one_process


@bt.jit
def scale(x, weight):
    return x * weight


def run():
    with one_process() as mesh:
        other = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "model"))
        x = distribute_tensor(torch.ones(4, 3), mesh, [Replicate()])
        scale(x, distribute_tensor(torch.ones(3), other, [Replicate(), Replicate()]))
