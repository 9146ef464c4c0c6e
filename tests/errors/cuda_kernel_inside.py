"""A CUDA kernel of one's own that is made within a compiled function."""

import torch

import babytriton as bt

SOURCE = "__global__ void same(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }"


@bt.jit("gpu")
def f(x):
    same = bt.cuda_kernel(SOURCE, name="same", grid=1, block=3, cpu=torch.clone)
    return same(x)


def run():
    f.lower(torch.ones(3))
